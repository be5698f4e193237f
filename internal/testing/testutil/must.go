package testutil

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Must fails and ends the test if err is not nil.
func Must(t testing.TB, err error) {
	if err != nil { // so that measured code calls nothing else
		t.Helper()
		t.Fatal(err)
	}
}

// Check fails the test, without ending it, if err is not nil.
func Check(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// Value is for calls that return a value and an error: Value(os.ReadFile(name))(t) returns the
// value. It fails and ends the test if there is an error. A test that only needs the check ignores
// the value.
func Value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return v
	}
}

// Equal fails the test, without ending it, if got is not want, and reports both. The format and its
// arguments, which may be empty, describe the compared value.
func Equal[T comparable](t testing.TB, got, want T, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%sgot %v, want %v", label(format, args), got, want)
	}
}

// MustEqual is Equal, but ends the test.
func MustEqual[T comparable](t testing.TB, got, want T, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Fatalf("%sgot %v, want %v", label(format, args), got, want)
	}
}

// EqualSlices is Equal for slices.
func EqualSlices[T comparable](t testing.TB, got, want []T, format string, args ...any) {
	if !slices.Equal(got, want) {
		t.Helper()
		t.Errorf("%sgot %v, want %v", label(format, args), got, want)
	}
}

// True fails the test, without ending it, if ok is false. The format and its arguments report the
// failure. They are evaluated in any case, and allocate: measured code uses an if instead.
func True(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// MustTrue is True, but ends the test.
func MustTrue(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// Is fails the test, without ending it, if err is not want.
func Is(t testing.TB, err, want error, format string, args ...any) {
	if !errors.Is(err, want) {
		t.Helper()
		t.Errorf("%sgot the error %v, want %v", label(format, args), err, want)
	}
}

// Err returns the error of a call that also returns a value.
func Err[T any](_ T, err error) error { return err }

// Fails fails the test, without ending it, if err is nil or its text does not contain want.
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
