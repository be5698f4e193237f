package lang

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// expired is a context with a deadline that passes when it is cancelled.
type expired struct{ context.Context }

func (o expired) Err() error {
	if o.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// TestProgramThatHangs: a program is ended, together with its children and other holders of its
// output.
func TestProgramThatHangs(t *testing.T) {
	for _, script := range []string{"sleep 1000", "sleep 1000 & wait"} {
		begun := filepath.Join(t.TempDir(), "begun")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := runProgram(expired{ctx},
				[]string{"/bin/sh", "-c", "echo >" + begun + "; " + script}, nil)
			ended <- err
		}()
		testutil.Until(t, "the program runs", func() bool {
			_, err := os.Stat(begun)
			return err == nil
		})
		cancel()
		err := testutil.Receive(t, "the program is ended", ended)
		testutil.Fails(t, err, "took too long together", "")
	}
	d := NewDecoder("test.yaml", nil)
	d.programsTime = 0
	testutil.True(t, testutil.Err(d.output([]string{"/bin/true"})) != nil,
		"a program ran without time")
}
