// Runner for pgx. Mode: prepare, binary (pgx's own choice of formats, else text), simple, pipeline.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
)

type request struct {
	Do     string
	SQL    string
	Params [][2]interface{}
	Batch  []request
}

type mode struct {
	Params                   string
	Prepare, Simple, Pipeline bool
}

type result struct {
	Columns []string        `json:"columns"`
	Rows    [][]interface{} `json:"rows"`
}

type results struct {
	Results []*result `json:"results"`
}

type failure struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

var (
	m          mode
	connection *pgx.Conn
	ctx        = context.Background()
)

func main() {
	check(json.Unmarshal([]byte(os.Args[1]), &m))
	config, err := pgx.ParseConfig("")
	check(err)
	config.PreferSimpleProtocol = m.Simple
	if !m.Prepare {
		config.BuildStatementCache = nil // or behind a pool in transaction mode names would clash
	}
	connection, err = pgx.ConnectConfig(ctx, config)
	check(err)
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		check(json.Unmarshal(line, &r))
		said, err := answer(r)
		if err != nil {
			var server *pgconn.PgError
			if errors.As(err, &server) {
				said = failure{server.Code, server.Message}
			} else {
				said = failure{"client", err.Error()}
			}
		}
		text, err := json.Marshal(said)
		check(err)
		fmt.Printf("%s\n", text)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func answer(r request) (interface{}, error) {
	if r.Do != "" {
		_, err := connection.Exec(ctx, r.Do)
		return result{[]string{}, [][]interface{}{}}, err
	}
	if r.Batch == nil {
		return execute(r)
	}
	done := results{[]*result{}}
	if m.Pipeline {
		err := connection.BeginFunc(ctx, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			for _, inner := range r.Batch {
				values, err := parameters(inner.Params)
				if err != nil {
					return err
				}
				batch.Queue(inner.SQL, values...)
			}
			sent := tx.SendBatch(ctx, batch)
			defer sent.Close()
			for range r.Batch {
				rows, err := sent.Query()
				if err != nil {
					return err
				}
				one, err := taken(rows)
				if err != nil {
					return err
				}
				done.Results = append(done.Results, one)
			}
			return nil
		})
		return done, err
	}
	err := connection.BeginFunc(ctx, func(pgx.Tx) error {
		for _, inner := range r.Batch {
			one, err := execute(inner)
			if err != nil {
				return err
			}
			done.Results = append(done.Results, one)
		}
		return nil
	})
	return done, err
}

func execute(r request) (*result, error) {
	values, err := parameters(r.Params)
	if err != nil {
		return nil, err
	}
	rows, err := connection.Query(ctx, r.SQL, values...)
	if err != nil {
		return nil, err
	}
	return taken(rows)
}

func parameters(given [][2]interface{}) ([]interface{}, error) {
	values := make([]interface{}, len(given))
	for i, p := range given {
		value := p[1]
		switch {
		case value == nil || m.Params != "typed":
		case p[0] == "timestamptz" && value != "infinity" && value != "-infinity":
			t, err := time.Parse(time.RFC3339Nano, value.(string))
			if err != nil {
				return nil, err
			}
			value = t
		case p[0] == "integer":
			value = int32(value.(float64))
		case p[0] == "uuid[]":
			value = strings(value.([]interface{}))
			if m.Simple { // the simple protocol takes no slices
				array := pgtype.UUIDArray{}
				if err := array.Set(value); err != nil {
					return nil, err
				}
				value = array
			}
		}
		values[i] = value
	}
	return values, nil
}

// Strings, or nil for NULL; of two dimensions if it has two.
func strings(items []interface{}) interface{} {
	flat := []*string{}
	deep := [][]string{}
	for _, item := range items {
		switch item := item.(type) {
		case string:
			flat = append(flat, &item)
		case []interface{}:
			inner := []string{}
			for _, s := range item {
				inner = append(inner, s.(string))
			}
			deep = append(deep, inner)
		default:
			flat = append(flat, nil)
		}
	}
	if len(deep) > 0 {
		return deep
	}
	return flat
}

func taken(rows pgx.Rows) (*result, error) {
	defer rows.Close()
	done := result{[]string{}, [][]interface{}{}}
	for _, field := range rows.FieldDescriptions() {
		done.Columns = append(done.Columns, string(field.Name))
	}
	for rows.Next() {
		row := make([]interface{}, len(done.Columns))
		targets := make([]interface{}, len(row))
		for i, field := range rows.FieldDescriptions() {
			switch field.DataTypeOID {
			case pgtype.BoolOID:
				targets[i] = new(*bool)
			case pgtype.Int4OID, pgtype.Int8OID:
				targets[i] = new(*int64)
			case pgtype.TimestamptzOID:
				targets[i] = new(*time.Time)
			default: // uuid, jsonb and text; jsonb as text keeps all digits
				targets[i] = new(*string)
			}
			if field.DataTypeOID == 2278 {
				targets[i] = nil // void
			}
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		for i, target := range targets {
			switch value := target.(type) {
			case **bool:
				row[i] = *value
			case **int64:
				row[i] = *value
			case **time.Time:
				if *value != nil {
					row[i] = (*value).UTC().Format(time.RFC3339Nano)
				}
			case **string:
				row[i] = *value
			}
		}
		done.Rows = append(done.Rows, row)
	}
	return &done, rows.Err()
}
