/* Runner for libpq. Mode: prepare, binary, pipeline. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BOOL = 16, INT8 = 20, INT4 = 23, TEXT = 25, TIMESTAMPTZ = 1184, VOID = 2278, UUID = 2950, UUIDS = 2951, JSONB = 3802 };

static PGconn *connection;
static bool typed, prepare, binary, pipeline;

/* -- parameters: text, with the type of the contract or with none ------------------------- */

typedef struct {
    int number;
    Oid *types;
    char **values;
} Parameters;

static Oid type_of(const char *name)
{
    static const struct { const char *name; Oid type; } known[] = {
        {"uuid", UUID}, {"jsonb", JSONB}, {"timestamptz", TIMESTAMPTZ}, {"integer", INT4}, {"boolean", BOOL}, {"uuid[]", UUIDS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].type;
    return TEXT;
}

static void add_array(char **end, const cJSON *items)
{
    const cJSON *item;
    *end = stpcpy(*end, "{");
    cJSON_ArrayForEach(item, items)
    {
        if (item != items->child)
            *end = stpcpy(*end, ",");
        if (cJSON_IsArray(item))
            add_array(end, item);
        else
            *end = stpcpy(*end, cJSON_IsNull(item) ? "NULL" : item->valuestring);
    }
    *end = stpcpy(*end, "}");
}

static char *text_of(const cJSON *value)
{
    if (cJSON_IsNull(value))
        return NULL;
    if (cJSON_IsString(value))
        return strdup(value->valuestring);
    if (cJSON_IsBool(value))
        return strdup(cJSON_IsTrue(value) ? "true" : "false");
    if (cJSON_IsArray(value)) {
        char *printed = cJSON_PrintUnformatted(value), *text = malloc(strlen(printed) + 16), *end = text;
        add_array(&end, value);
        free(printed);
        return text;
    }
    char *number = malloc(32);
    snprintf(number, 32, "%d", value->valueint);
    return number;
}

static Parameters parameters(const cJSON *request)
{
    const cJSON *list = cJSON_GetObjectItem(request, "params");
    Parameters p = {cJSON_GetArraySize(list), NULL, NULL};
    p.types = calloc(p.number + 1, sizeof *p.types);
    p.values = calloc(p.number + 1, sizeof *p.values);
    for (int i = 0; i < p.number; i++) {
        const cJSON *pair = cJSON_GetArrayItem(list, i);
        p.types[i] = typed ? type_of(cJSON_GetArrayItem(pair, 0)->valuestring) : 0;
        p.values[i] = text_of(cJSON_GetArrayItem(pair, 1));
    }
    return p;
}

static void free_parameters(Parameters p)
{
    for (int i = 0; i < p.number; i++)
        free(p.values[i]);
    free(p.values);
    free(p.types);
}

/* -- results ------------------------------------------------------------------------------- */

static int64_t big_endian(const unsigned char *bytes, int length)
{
    int64_t value = (signed char)bytes[0];
    for (int i = 1; i < length; i++)
        value = (value << 8) | bytes[i];
    return value;
}

static cJSON *from_binary(Oid type, const unsigned char *bytes, int length)
{
    char text[64];
    if (type == BOOL)
        return cJSON_CreateBool(bytes[0]);
    if (type == INT4 || type == INT8)
        return cJSON_CreateNumber((double)big_endian(bytes, length));
    if (type == UUID) {
        char *end = text;
        for (int i = 0; i < 16; i++)
            end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
        return cJSON_CreateString(text);
    }
    if (type == TIMESTAMPTZ) { /* microseconds since 2000 */
        int64_t all = big_endian(bytes, 8) + INT64_C(946684800000000);
        time_t seconds = all / 1000000;
        struct tm parts;
        gmtime_r(&seconds, &parts);
        size_t used = strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
        snprintf(text + used, sizeof text - used, ".%06" PRId64 "Z", all % 1000000);
        return cJSON_CreateString(text);
    }
    return cJSON_CreateString((const char *)bytes + (type == JSONB)); /* jsonb: a version, then its text */
}

static cJSON *from_text(Oid type, const char *text)
{
    if (type == BOOL)
        return cJSON_CreateBool(text[0] == 't');
    return cJSON_CreateString(text);
}

static cJSON *rows_of(const PGresult *result)
{
    cJSON *said = cJSON_CreateObject(), *columns = cJSON_AddArrayToObject(said, "columns"), *rows = cJSON_AddArrayToObject(said, "rows");
    for (int c = 0; c < PQnfields(result); c++)
        cJSON_AddItemToArray(columns, cJSON_CreateString(PQfname(result, c)));
    for (int r = 0; r < PQntuples(result); r++) {
        cJSON *row = cJSON_CreateArray();
        for (int c = 0; c < PQnfields(result); c++) {
            const char *value = PQgetvalue(result, r, c);
            cJSON_AddItemToArray(row, PQgetisnull(result, r, c) ? cJSON_CreateNull()
                                    : PQfformat(result, c)      ? from_binary(PQftype(result, c), (const unsigned char *)value, PQgetlength(result, r, c))
                                                                : from_text(PQftype(result, c), value));
        }
        cJSON_AddItemToArray(rows, row);
    }
    return said;
}

static cJSON *error_of(const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    cJSON *said = cJSON_CreateObject();
    cJSON_AddStringToObject(said, "error", state ? state : "client");
    cJSON_AddStringToObject(said, "message", PQresultErrorMessage(result));
    return said;
}

static bool is_error(const PGresult *result)
{
    return PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK;
}

static cJSON *taken(PGresult *result)
{
    cJSON *said = is_error(result) ? error_of(result) : rows_of(result);
    PQclear(result);
    return said;
}

/* -- requests ------------------------------------------------------------------------------ */

static const char *name_of(const char *sql, const Parameters *p, cJSON **failure)
{
    static cJSON *names;
    static int last; /* a new name each time: pgbouncer keeps one whose PREPARE failed */
    names = names ? names : cJSON_CreateObject();
    cJSON *known = cJSON_GetObjectItemCaseSensitive(names, sql);
    if (known)
        return known->valuestring;
    char name[32];
    snprintf(name, sizeof name, "s%d", ++last);
    PGresult *result = PQprepare(connection, name, sql, p->number, p->types);
    if (is_error(result)) {
        *failure = taken(result);
        return NULL;
    }
    PQclear(result);
    return cJSON_AddStringToObject(names, sql, name)->valuestring;
}

static cJSON *execute(const cJSON *request)
{
    const char *sql = cJSON_GetObjectItem(request, "sql")->valuestring;
    Parameters p = parameters(request);
    const char *const *values = (const char *const *)p.values;
    cJSON *said = NULL;
    if (!prepare)
        said = taken(PQexecParams(connection, sql, p.number, p.types, values, NULL, NULL, binary));
    else {
        const char *name = name_of(sql, &p, &said);
        if (name)
            said = taken(PQexecPrepared(connection, name, p.number, values, NULL, NULL, binary));
    }
    free_parameters(p);
    return said;
}

static cJSON *perform(const char *sql)
{
    return taken(PQexec(connection, sql));
}

static void send(const cJSON *request)
{
    Parameters p = parameters(request);
    PQsendQueryParams(connection, cJSON_GetObjectItem(request, "sql")->valuestring, p.number, p.types, (const char *const *)p.values, NULL, NULL, binary);
    free_parameters(p);
}

/* All statements in one go, and one transaction. */
static cJSON *pipelined(const cJSON *batch)
{
    const cJSON *request;
    cJSON *results = cJSON_CreateArray(), *failure = NULL;
    PGresult *result;
    PQenterPipelineMode(connection);
    PQsendQueryParams(connection, "BEGIN", 0, NULL, NULL, NULL, NULL, 0);
    cJSON_ArrayForEach(request, batch) send(request);
    PQsendQueryParams(connection, "COMMIT", 0, NULL, NULL, NULL, NULL, 0);
    PQpipelineSync(connection);
    for (bool ended = false; !ended;)
        while ((result = PQgetResult(connection))) {
            ExecStatusType status = PQresultStatus(result);
            ended = status == PGRES_PIPELINE_SYNC;
            if (!ended && status != PGRES_PIPELINE_ABORTED) {
                if (is_error(result))
                    failure = failure ? failure : error_of(result);
                else
                    cJSON_AddItemToArray(results, rows_of(result));
            }
            PQclear(result);
            if (ended)
                break;
        }
    PQexitPipelineMode(connection);
    if (failure) {
        cJSON_Delete(results);
        cJSON_Delete(perform("ROLLBACK"));
        return failure;
    }
    cJSON_DeleteItemFromArray(results, 0);
    cJSON_DeleteItemFromArray(results, cJSON_GetArraySize(results) - 1);
    cJSON *said = cJSON_CreateObject();
    cJSON_AddItemToObject(said, "results", results);
    return said;
}

static cJSON *one_by_one(const cJSON *batch)
{
    const cJSON *request;
    cJSON *results = cJSON_CreateArray();
    cJSON_Delete(perform("BEGIN"));
    cJSON_ArrayForEach(request, batch)
    {
        cJSON *said = execute(request);
        if (cJSON_GetObjectItem(said, "error")) {
            cJSON_Delete(results);
            cJSON_Delete(perform("ROLLBACK"));
            return said;
        }
        cJSON_AddItemToArray(results, said);
    }
    cJSON_Delete(perform("COMMIT"));
    cJSON *said = cJSON_CreateObject();
    cJSON_AddItemToObject(said, "results", results);
    return said;
}

static cJSON *answer(const cJSON *request)
{
    const cJSON *verb = cJSON_GetObjectItem(request, "do"), *batch = cJSON_GetObjectItem(request, "batch");
    if (verb)
        return perform(verb->valuestring);
    if (batch)
        return pipeline ? pipelined(batch) : one_by_one(batch);
    return execute(request);
}

int main(int argc, char **argv)
{
    cJSON *mode = cJSON_Parse(argc > 1 ? argv[1] : "{}");
    const cJSON *params = cJSON_GetObjectItem(mode, "params");
    typed = params && strcmp(params->valuestring, "typed") == 0;
    prepare = cJSON_IsTrue(cJSON_GetObjectItem(mode, "prepare"));
    binary = cJSON_IsTrue(cJSON_GetObjectItem(mode, "binary"));
    pipeline = cJSON_IsTrue(cJSON_GetObjectItem(mode, "pipeline"));
    connection = PQconnectdb("");
    if (PQstatus(connection) != CONNECTION_OK) {
        fputs(PQerrorMessage(connection), stderr);
        return 1;
    }
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        cJSON *request = cJSON_Parse(line), *said = answer(request);
        char *text = cJSON_PrintUnformatted(said);
        puts(text);
        fflush(stdout);
        free(text);
        cJSON_Delete(said);
        cJSON_Delete(request);
    }
    PQfinish(connection);
    return 0;
}
