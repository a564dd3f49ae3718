# Runner for DBD::Pg. Mode: prepare (on the server).
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:pg_types);
use JSON::PP;

my $json = JSON::PP->new->utf8->allow_nonref;
my $mode = $json->decode($ARGV[0]);
my $dbh = DBI->connect('dbi:Pg:', undef, undef,
    { AutoCommit => 1, RaiseError => 1, PrintError => 0, pg_server_prepare => $mode->{prepare} ? 1 : 0 });
my %type = (
    text => PG_TEXT, uuid => PG_UUID, jsonb => PG_JSONB, timestamptz => PG_TIMESTAMPTZ,
    integer => PG_INT4, boolean => PG_BOOL, 'uuid[]' => PG_UUIDARRAY,
);

my %known;    # statements that are prepared

sub array_text {
    my ($value) = @_;
    return '{' . join(',', map { !defined $_ ? 'NULL' : ref $_ ? array_text($_) : $_ } @$value) . '}';
}

sub execute {
    my ($request) = @_;
    my $statement = $mode->{prepare} ? $dbh->prepare_cached($request->{sql}) : $dbh->prepare($request->{sql});
    my $number = 0;
    for my $parameter (@{ $request->{params} }) {
        my ($type, $value) = @$parameter;
        $value = array_text($value) if ref $value eq 'ARRAY';
        $value = $value ? 1 : 0 if ref $value;    # a JSON boolean
        # a type that is said again makes DBD::Pg prepare again, and DEALLOCATE what a pool does not know by that name
        my $said = $known{ $request->{sql} } || $mode->{params} ne 'typed';
        $statement->bind_param(++$number, $value, $said ? undef : { pg_type => $type{$type} });
    }
    $known{ $request->{sql} } = $mode->{prepare};
    $statement->execute;
    my $columns = $statement->{NUM_OF_FIELDS} ? [@{ $statement->{NAME} }] : [];
    my $rows = @$columns ? $statement->fetchall_arrayref : [];
    return { columns => $columns, rows => $rows };
}

sub answer {
    my ($request) = @_;
    if ($request->{do}) {
        $request->{do} eq 'begin' ? $dbh->begin_work
            : $request->{do} eq 'commit' ? ($dbh->{AutoCommit} ? $dbh->do('COMMIT') : $dbh->commit)
            : ($dbh->{AutoCommit} ? $dbh->do('ROLLBACK') : $dbh->rollback);
        return { columns => [], rows => [] };
    }
    return execute($request) unless $request->{batch};
    $dbh->begin_work;
    my @results = eval { map { execute($_) } @{ $request->{batch} } };
    if (my $error = $@) {
        my $state = $dbh->state;
        $dbh->rollback;
        die { state => $state, message => $error };
    }
    $dbh->commit;
    return { results => \@results };
}

$| = 1;
while (my $line = <STDIN>) {
    my $said = eval { answer($json->decode($line)) };
    if (my $error = $@) {
        my $state = ref $error ? $error->{state} : $dbh->state;
        $state = 'client' if !$state || $state eq 'S1000' || $state eq '00000';
        $said = { error => $state, message => ref $error ? $error->{message} : $error };
    }
    print $json->encode($said), "\n";
}
