package testutil

import (
	"fmt"
	"strings"
	"testing"
)

// Must fails the test, which ends, if err is not nil.
func Must(t testing.TB, err error) {
	if err != nil { // what is measured calls nothing else
		t.Helper()
		t.Fatal(err)
	}
}

// Check fails the test, which goes on, if err is not nil.
func Check(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// Value is for calls that return a value and an error: Value(os.ReadFile(name))(t) is the value. It
// fails the test, which ends, if there is an error. A call whose value no test needs ignores it.
func Value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return v
	}
}

// Equal fails the test, which goes on, if got is not want, and then says both. The format and its
// arguments, which may be empty, say what is compared.
func Equal[T comparable](t testing.TB, got, want T, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%sgot %v, want %v", label(format, args), got, want)
	}
}

// MustEqual is Equal for a test that ends.
func MustEqual[T comparable](t testing.TB, got, want T, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Fatalf("%sgot %v, want %v", label(format, args), got, want)
	}
}

// Fails fails the test, which goes on, if err is nil or its text does not have want.
func Fails(t testing.TB, err error, want, format string, args ...any) {
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Helper()
		t.Errorf("%sgot the error %v, want %q", label(format, args), err, want)
	}
}

func label(format string, args []any) string {
	if format == "" {
		return ""
	}
	return fmt.Sprintf(format, args...) + ": "
}
