// Package bench has the tests of tests/e2e that run the load of internal/bench.
package bench
