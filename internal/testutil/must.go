package testutil

import "testing"

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
