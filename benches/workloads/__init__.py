"""One workload a file: `run(bench)` measures, `TITLE` heads its part of the report."""
