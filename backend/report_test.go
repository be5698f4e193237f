package backend

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
)

func TestReport(t *testing.T) {
	var r Report
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	r.Warnf("Make room.", "%d bytes are free", 7)
	r.Errorf("Add path.", "no path is %s", "given")
	err := WithHint(fs.ErrNotExist, "Create it.")
	r.Add(err)
	r.Add(WithHint(errors.New("is what it is"), ""))
	if want := []Problem{
		{"no path is given", "Add path."},
		{"file does not exist", "Create it."},
		{"is what it is", ""},
	}; !slices.Equal(r.Errors, want) ||
		r.Warnings[0] != (Problem{"7 bytes are free", "Make room."}) {
		t.Errorf("%+v", r)
	}
	if got := r.Err().Error(); got !=
		"no path is given (add path)\nfile does not exist (create it)\nis what it is" {
		t.Error(got)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the error behind a hint is lost")
	}
}
