package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/control"
)

// Resize changes the size of a namespace in a file. The owner resizes other storage.
func (e *Engine) Resize(r control.Resize) error {
	e.applying.Lock()
	defer e.applying.Unlock()
	if e.stopped != nil {
		return e.stopped
	}
	size, err := lang.ParseSize(r.Size)
	if err != nil {
		return control.NewProblem(http.StatusConflict, err.Error(), "Write, for instance, 20GiB.").
			At("size")
	}
	name := config.Object{Kind: config.KindNamespace, NQN: r.Subsystem, NSID: r.NSID}
	if _, err := e.Volumes.Size(name); err != nil {
		return err
	}
	c, m := e.Current(), config.Managed{Subsystem: r.Subsystem, NSID: r.NSID}
	file := m.File(c.Managed)
	edit, err := resizedFile(c, m, file, int64(size))
	if err != nil {
		return fmt.Errorf("the file %s of the namespace: %w", file, err)
	}
	if err := e.Volumes.MayResize(name, int64(size), r.Shrink, edit != nil); err != nil {
		return err
	}
	if edit != nil { // it makes it larger, too
		if _, err := e.makeEdit(c, m, edit); err != nil {
			return err
		}
		if has, err := e.Volumes.Size(name); err != nil || has <= int64(size) {
			return nil
		}
	}
	return e.Volumes.Resize(name, int64(size))
}

// resizedFile returns the edit that sets another size for a namespace in its file in the managed
// directory. It is nil if there is no such file, or no size in it.
func resizedFile(c *config.Config, m config.Managed, file string, size int64) (*config.Edit,
	error,
) {
	if c.Managed == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content, ok, err := m.WithSize(content, size)
	if !ok {
		return nil, err
	}
	return &config.Edit{Path: file, Content: content}, nil
}
