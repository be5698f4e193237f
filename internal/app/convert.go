package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/convert"
)

// Convert writes the configuration that does what the one of another target in a file does to out,
// and what has no counterpart to notes, too. Each configuration that it writes passes Check but for
// what this machine lacks.
func Convert(from func(string, []byte) (*convert.Result, error), file string,
	out, notes io.Writer,
) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("%w. Name an existing file", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, convert.MaxFile+1))
	if err != nil {
		return err
	}
	result, err := from(file, text)
	if result != nil {
		for _, n := range result.Notes {
			if _, err := fmt.Fprintln(notes, n); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	var problems config.Problems
	if _, err = config.Parse(file, result.YAML, nil, backends); errors.As(err, &problems) {
		// The files of keys may be on another machine.
		problems = slices.DeleteFunc(problems,
			func(p config.Problem) bool { return p.Hint == config.HintUnreadable })
		if len(problems) == 0 {
			_, err = out.Write(result.YAML)
			return err
		}
		for i := range problems {
			problems[i].Place = result.Place(problems[i].Path)
		}
		return problems
	}
	if err != nil {
		return err
	}
	_, err = out.Write(result.YAML)
	return err
}
