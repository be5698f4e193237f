package testutil

import (
	"os"
	"testing"
)

// soak is the environment variable set by "make soak".
const soak = "NVMF_TEST_SOAK"

// Soaking reports whether "make soak" runs the tests.
func Soaking() bool { return os.Getenv(soak) != "" }

// Soak skips the test unless "make soak" runs it. why is the reason: the test measures time, or
// takes long.
func Soak(t testing.TB, why string) {
	t.Helper()
	if !Soaking() {
		t.Skipf("left to make soak: %s", why)
	}
}

// Rounds returns the number of repetitions in a test: test with "make test", and soak with "make
// soak".
func Rounds(test, soak int) int {
	if Soaking() {
		return soak
	}
	return test
}
