package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/convert"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// Converter converts the configurations of another target.
type Converter struct {
	// Default is the place where a running target is found.
	Default string
	convert func(file string, text []byte, o convert.Options) (*convert.Result, error)
	// running reads the configuration of a running target. The file at path has the type at.
	running func(ctx context.Context, path string) ([]byte, error)
	at      fs.FileMode
}

// Converters has a Converter for each subcommand of convert, by its name.
var Converters = map[string]Converter{
	"nvmet": {
		Default: convert.NVMetTree, convert: convert.NVMet, at: fs.ModeDir,
		running: func(_ context.Context, dir string) ([]byte, error) {
			return convert.ReadNVMet(dir)
		},
	},
	"spdk": {
		Default: convert.SPDKSocket, convert: convert.SPDK, at: fs.ModeSocket,
		running: convert.ReadSPDK,
	},
}

// Convert converts the configuration of another target. It writes the result to out, and items
// without a counterpart also to notes. Path is a file, or the place of the running target. Each
// result passes Check, apart from missing parts of this machine.
func (k Converter) Convert(ctx context.Context, path string, out, notes io.Writer) error {
	text, running, err := k.read(ctx, path)
	if err != nil {
		return err
	}
	result, err := k.convert(path, text, convert.Options{
		Machine: convert.Local{}, Check: parses, Live: running,
	})
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
	_, err = out.Write(result.YAML)
	return err
}

// read returns the text of a file, or of a running target.
func (k Converter) read(ctx context.Context, path string) (text []byte, running bool, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil && path == k.Default:
		return nil, false, fmt.Errorf("%w: no such target runs here. Name a file that it has saved",
			err)
	case err != nil:
		return nil, false, fmt.Errorf("%w. Name an existing file", err)
	case info.Mode().Type() == k.at:
		text, err = k.running(ctx, path)
		return text, true, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	text, err = io.ReadAll(io.LimitReader(f, convert.MaxFile+1))
	return text, false, err
}

// parses returns the problems of a configuration on any machine. Key files may be elsewhere.
func parses(yaml []byte) error {
	_, err := config.Parse("the result", yaml, nil, volumes.Backends)
	if problems, ok := errors.AsType[config.Problems](err); ok {
		problems = slices.DeleteFunc(problems, func(p config.Problem) bool {
			return p.Warning || p.Hint == lang.HintUnreadable
		})
		if len(problems) == 0 {
			return nil
		}
		return problems
	}
	return err
}
