package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestReport(t *testing.T) {
	var r Report
	testutil.Check(t, r.Err())
	r.Warnf("Make room.", "%d bytes are free", 7)
	r.Errorf("Add path.", "no path is %s", "given")
	err := WithHint(fs.ErrNotExist, "Create it.")
	r.Add(err)
	r.Add(WithHint(errors.New("is what it is"), ""))
	r.Add(WithHint(fmt.Errorf("%w by a", ErrInUse), "Stop it."))
	if want := []Problem{
		{What: "no path is given", Hint: "Add path."},
		{What: "file does not exist", Hint: "Create it."},
		{What: "is what it is"},
		{What: "is in use by a", Hint: "Stop it.", InUse: true},
	}; !slices.Equal(r.Errors, want) ||
		r.Warnings[0] != (Problem{What: "7 bytes are free", Hint: "Make room."}) {
		t.Errorf("%+v", r)
	}
	if got := r.Err().Error(); got !=
		"no path is given (add path)\nfile does not exist (create it)\nis what it is\n"+
			"is in use by a (stop it)" {
		t.Error(got)
	}
	testutil.True(t, errors.Is(err, fs.ErrNotExist), "the error behind a hint is lost")
}
