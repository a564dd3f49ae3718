# Runner for ruby-pg. Mode: prepare, binary, pipeline, plain.
require 'json'
require 'time'
require 'pg'

MODE = JSON.parse(ARGV[0])
CONNECTION = PG.connect
CONNECTION.set_notice_processor { |_| }
# without a map every value is text, and that keeps all digits of jsonb and all microseconds
RESULTS = PG::TypeMapByOid.new
if MODE['binary']
  { 16 => PG::BinaryDecoder::Boolean, 20 => PG::BinaryDecoder::Integer, 23 => PG::BinaryDecoder::Integer,
    25 => PG::BinaryDecoder::String, 1184 => PG::BinaryDecoder::TimestampUtc, 2278 => PG::BinaryDecoder::String }.each do |oid, decoder|
    RESULTS.add_coder(decoder.new(oid: oid, format: 1))
  end
else
  { 16 => PG::TextDecoder::Boolean, 20 => PG::TextDecoder::Integer, 23 => PG::TextDecoder::Integer }.each do |oid, decoder|
    RESULTS.add_coder(decoder.new(oid: oid))
  end
end
OIDS = { 'uuid' => 2950, 'jsonb' => 3802, 'timestamptz' => 1184, 'integer' => 23, 'boolean' => 16, 'uuid[]' => 2951, 'text' => 25 }.freeze
ARRAYS = PG::TextEncoder::Array.new(elements_type: PG::TextEncoder::String.new)
NAMES = {}

def parameter((type, value))
  return value if MODE['params'] != 'typed'
  value = ARRAYS.encode(value) if value.is_a?(Array)
  { value: value.nil? ? nil : value.to_s, type: OIDS[type], format: 0 }
end

def plain(value, oid)
  return value if value.nil?
  return value.utc.iso8601(6) if value.is_a?(Time)
  if MODE['binary'] && value.is_a?(String)
    return value.unpack1('H*').sub(/(.{8})(.{4})(.{4})(.{4})/, '\1-\2-\3-\4-') if oid == 2950
    return value.byteslice(1..).force_encoding('UTF-8') if oid == 3802
    return value.force_encoding('UTF-8')
  end
  value
end

def rows_of(result)
  result.type_map = RESULTS unless MODE['plain']
  types = (0...result.nfields).map { |i| result.ftype(i) }
  { columns: result.fields, rows: result.values.map { |row| row.each_with_index.map { |value, i| plain(value, types[i]) } } }
end

def execute(request)
  values = request['params'].map { |p| parameter(p) }
  format = MODE['binary'] ? 1 : 0
  return rows_of(CONNECTION.exec_params(request['sql'], values, format)) unless MODE['prepare']
  name = NAMES[request['sql']]
  unless name
    name = "s#{$last = $last.to_i + 1}" # a new one each time: pgbouncer keeps one whose PREPARE failed
    CONNECTION.prepare(name, request['sql'], values.map { |v| v.is_a?(Hash) ? v[:type] : 0 })
    NAMES[request['sql']] = name
  end
  rows_of(CONNECTION.exec_prepared(name, values, format))
end

def pipelined(requests)
  CONNECTION.enter_pipeline_mode
  begin
    CONNECTION.send_query_params('BEGIN', [])
    requests.each { |r| CONNECTION.send_query_params(r['sql'], r['params'].map { |p| parameter(p) }, MODE['binary'] ? 1 : 0) }
    CONNECTION.send_query_params('COMMIT', [])
    CONNECTION.pipeline_sync
    results = []
    failure = nil
    loop do
      result = CONNECTION.get_result
      next if result.nil? # the end of one statement
      break if result.result_status == PG::PGRES_PIPELINE_SYNC
      next if result.result_status == PG::PGRES_PIPELINE_ABORTED
      begin
        results << rows_of(result.check)
      rescue PG::Error => e
        failure ||= e
      end
    end
  ensure
    CONNECTION.exit_pipeline_mode
  end
  if failure
    CONNECTION.exec('ROLLBACK')
    raise failure
  end
  { results: results[1..-2] }
end

def answer(request)
  if request['do']
    CONNECTION.exec(request['do'])
    { columns: [], rows: [] }
  elsif request['batch']
    return pipelined(request['batch']) if MODE['pipeline']
    CONNECTION.transaction { { results: request['batch'].map { |r| execute(r) } } }
  else
    execute(request)
  end
end

$stdout.sync = true
$stdin.each_line do |line|
  said = begin
    answer(JSON.parse(line))
  rescue PG::Error => e
    { error: e.result&.error_field(PG::PG_DIAG_SQLSTATE) || 'client', message: e.message }
  rescue ArgumentError, TypeError => e
    { error: 'client', message: e.message }
  end
  puts JSON.generate(said)
end
