// Package random has the tests of tests/e2e that compare the results of random commands, and the
// content of storage after losses of power, with models.
package random
