// Runner for pgjdbc. Mode: params typed, text (stringtype=unspecified) or cast; prepare, binary, simple.
import com.google.gson.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.sql.*;
import java.time.OffsetDateTime;
import java.util.*;
import org.postgresql.util.PGobject;

public class Runner {
    static Connection connection;
    static boolean typed;
    static final Gson GSON = new GsonBuilder().serializeNulls().create();

    static boolean flag(JsonObject mode, String name) {
        return mode.has(name) && mode.get(name).getAsBoolean();
    }

    public static void main(String[] args) throws Exception {
        JsonObject mode = JsonParser.parseString(args[0]).getAsJsonObject();
        typed = mode.get("params").getAsString().equals("typed");
        Properties options = new Properties();
        options.setProperty("user", System.getenv("PGUSER"));
        // 0: never by name; -1: by name from the first time on, and then results are binary too
        options.setProperty("prepareThreshold", flag(mode, "binary") ? "-1" : flag(mode, "prepare") ? "1" : "0");
        if (mode.get("params").getAsString().equals("text")) options.setProperty("stringtype", "unspecified");
        if (flag(mode, "simple")) options.setProperty("preferQueryMode", "simple");
        String url = "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        connection = DriverManager.getConnection(url, options);
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        for (String line; (line = in.readLine()) != null; ) {
            Object said;
            try {
                said = answer(JsonParser.parseString(line).getAsJsonObject());
            } catch (SQLException error) {
                // what the server says comes with its own fields; the driver's own refusals have a SQLSTATE too
                boolean server = error instanceof org.postgresql.util.PSQLException e && e.getServerErrorMessage() != null;
                said = failure(server ? error.getSQLState() : "client", error);
            } catch (IllegalArgumentException | java.time.DateTimeException error) {
                said = failure("client", error);
            }
            out.println(GSON.toJson(said));
        }
    }

    static Map<String, Object> failure(String state, Exception error) {
        return Map.of("error", state, "message", String.valueOf(error.getMessage()));
    }

    static Object answer(JsonObject request) throws SQLException {
        if (request.has("do")) {
            switch (request.get("do").getAsString()) {
                case "begin" -> connection.setAutoCommit(false);
                case "commit" -> { connection.commit(); connection.setAutoCommit(true); }
                default -> { connection.rollback(); connection.setAutoCommit(true); }
            }
            return result(List.of(), List.of());
        }
        if (!request.has("batch")) return execute(request);
        connection.setAutoCommit(false);
        try {
            List<Object> results = new ArrayList<>();
            for (JsonElement inner : request.getAsJsonArray("batch")) results.add(execute(inner.getAsJsonObject()));
            connection.commit();
            return Map.of("results", results);
        } catch (SQLException error) {
            connection.rollback();
            throw error;
        } finally {
            connection.setAutoCommit(true);
        }
    }

    static Map<String, Object> result(List<String> columns, List<List<Object>> rows) {
        return Map.of("columns", columns, "rows", rows);
    }

    static Map<String, Object> execute(JsonObject request) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(request.get("sql").getAsString())) {
            int place = 0;
            for (JsonElement parameter : request.getAsJsonArray("params")) {
                JsonArray pair = parameter.getAsJsonArray();
                bind(statement, ++place, pair.get(0).getAsString(), pair.get(1));
            }
            if (!statement.execute()) return result(List.of(), List.of());
            try (ResultSet rows = statement.getResultSet()) {
                return rows(rows);
            }
        }
    }

    static void bind(PreparedStatement statement, int place, String type, JsonElement value) throws SQLException {
        if (!typed) {
            statement.setString(place, value.isJsonNull() ? null : value.getAsString());
        } else if (value.isJsonNull()) {
            int sql = switch (type) {
                case "integer" -> Types.INTEGER;
                case "boolean" -> Types.BOOLEAN;
                case "text" -> Types.VARCHAR;
                case "timestamptz" -> Types.TIMESTAMP_WITH_TIMEZONE;
                case "uuid[]" -> Types.ARRAY;
                default -> Types.OTHER;
            };
            statement.setNull(place, sql);
        } else {
            switch (type) {
                case "uuid" -> statement.setObject(place, uuid(value.getAsString()));
                case "uuid[]" -> statement.setArray(place, connection.createArrayOf("uuid", items(value.getAsJsonArray())));
                case "integer" -> statement.setInt(place, value.getAsInt());
                case "boolean" -> statement.setBoolean(place, value.getAsBoolean());
                case "timestamptz" -> statement.setObject(place, time(value.getAsString()));
                case "jsonb" -> statement.setObject(place, json(value.getAsString()));
                default -> statement.setString(place, value.getAsString());
            }
        }
    }

    static UUID uuid(String text) { // UUID.fromString takes short groups for leading zeros
        if (text.length() != 36) throw new IllegalArgumentException("no uuid: " + text);
        return UUID.fromString(text);
    }

    static OffsetDateTime time(String text) {
        return text.equals("infinity") ? OffsetDateTime.MAX : text.equals("-infinity") ? OffsetDateTime.MIN : OffsetDateTime.parse(text);
    }

    static PGobject json(String text) throws SQLException {
        PGobject object = new PGobject();
        object.setType("jsonb");
        object.setValue(text);
        return object;
    }

    static Object[] items(JsonArray array) {
        Object[] items = new Object[array.size()];
        for (int i = 0; i < items.length; i++) {
            JsonElement item = array.get(i);
            items[i] = item.isJsonNull() ? null : item.isJsonArray() ? items(item.getAsJsonArray()) : uuid(item.getAsString());
        }
        return items;
    }

    static Map<String, Object> rows(ResultSet rows) throws SQLException {
        ResultSetMetaData about = rows.getMetaData();
        List<String> columns = new ArrayList<>();
        for (int c = 1; c <= about.getColumnCount(); c++) columns.add(about.getColumnLabel(c));
        List<List<Object>> all = new ArrayList<>();
        while (rows.next()) {
            List<Object> row = new ArrayList<>();
            for (int c = 1; c <= columns.size(); c++) {
                Object value = about.getColumnTypeName(c).equals("timestamptz") ? rows.getObject(c, OffsetDateTime.class) : rows.getObject(c);
                row.add(value == null || value instanceof Number || value instanceof Boolean ? value : value.toString());
            }
            all.add(row);
        }
        return result(columns, all);
    }
}
