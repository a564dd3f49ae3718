<?php
// Runner for PDO (pdo_pgsql). Mode: prepare (on the server, else emulated by the driver), describe.
$mode = json_decode($argv[1], true);
$pdo = new PDO("pgsql:host={$_SERVER['PGHOST']};port={$_SERVER['PGPORT']};dbname={$_SERVER['PGDATABASE']}", $_SERVER['PGUSER']);
$pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$pdo->setAttribute(PDO::ATTR_EMULATE_PREPARES, $mode['emulate'] ?? false);
$pdo->setAttribute(PDO::PGSQL_ATTR_DISABLE_PREPARES, !($mode['prepare'] ?? false));
$statements = [];

function array_text($value)
{
    $items = array_map(fn ($item) => is_array($item) ? array_text($item) : ($item ?? 'NULL'), $value);
    return '{' . implode(',', $items) . '}';
}

function execute($request)
{
    global $pdo, $mode, $statements;
    $sql = $request['sql'];
    $statement = $statements[$sql] ?? $pdo->prepare($sql);
    if ($mode['prepare'] ?? false) {
        $statements[$sql] = $statement; // prepared once
    }
    foreach ($request['params'] as $i => [$type, $value]) {
        $value = is_array($value) ? array_text($value) : $value;
        $kind = $value === null ? PDO::PARAM_NULL : (is_int($value) ? PDO::PARAM_INT : (is_bool($value) ? PDO::PARAM_BOOL : PDO::PARAM_STR));
        $statement->bindValue($i + 1, $value, $kind);
    }
    $statement->execute();
    $columns = [];
    for ($i = 0; $i < $statement->columnCount(); $i++) {
        $columns[] = $statement->getColumnMeta($i)['name'];
    }
    $rows = $columns ? $statement->fetchAll(PDO::FETCH_NUM) : [];
    $statement->closeCursor();
    return ['columns' => $columns, 'rows' => $rows];
}

function answer($request)
{
    global $pdo;
    if (isset($request['do'])) {
        match ($request['do']) {
            'begin' => $pdo->beginTransaction(),
            'commit' => $pdo->inTransaction() ? $pdo->commit() : $pdo->exec('COMMIT'),
            'rollback' => $pdo->inTransaction() ? $pdo->rollBack() : $pdo->exec('ROLLBACK'),
        };
        return ['columns' => [], 'rows' => []];
    }
    if (!isset($request['batch'])) {
        return execute($request);
    }
    $pdo->beginTransaction();
    try {
        $results = array_map('execute', $request['batch']);
        $pdo->commit();
        return ['results' => $results];
    } catch (PDOException $error) {
        $pdo->rollBack();
        throw $error;
    }
}

while (($line = fgets(STDIN)) !== false) {
    try {
        $said = answer(json_decode($line, true, 4096));
    } catch (PDOException $error) {
        $state = $error->errorInfo[0] ?? 'client';
        $said = ['error' => $state === 'HY000' ? 'client' : $state, 'message' => $error->getMessage()];
    } catch (ValueError | TypeError $error) {
        $said = ['error' => 'client', 'message' => $error->getMessage()];
    }
    echo json_encode($said, JSON_UNESCAPED_UNICODE | JSON_INVALID_UTF8_SUBSTITUTE), "\n";
}
