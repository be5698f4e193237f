package app

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
)

// releaseLimit is how long storage that changes its owner may take to finish its commands.
const releaseLimit = 30 * time.Second

// changeNamespace adds, removes or modifies a namespace.
func (tr *transition) changeNamespace(c config.Change) (err error) {
	var undo func() error
	switch c.Op {
	case config.Add:
		undo, err = tr.volumes.Add(c.Object)
	case config.Remove:
		undo, err = tr.volumes.Remove(c.Object)
	case config.Modify:
		undo, err = tr.volumes.Modify(c.Object, c.Keys)
	}
	if undo != nil {
		tr.done(c.Object.String(), undo)
	}
	return err
}

// await waits for storage to be released, but not for ever.
func (s *Server) await(released <-chan struct{}) error {
	select {
	case <-released:
		return nil
	case <-s.ending.Done():
		return errStopped
	case <-time.After(s.releaseLimit):
		return fmt.Errorf("it still works on commands after %v", s.releaseLimit)
	}
}
