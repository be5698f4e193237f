package ram

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// check returns an error if such a device is not possible.
func (c Config) check() error {
	if err := backend.CheckGeometry(c.Size, c.BlockSize); err != nil {
		return err
	}
	if c.Size > maxSize {
		return fmt.Errorf("size %d: must be at most %d", c.Size, int64(maxSize))
	}
	return nil
}

// Probe reports problems of cfg. A size beyond the available memory is a warning.
func Probe(cfg Config) (r backend.Report) {
	if err := cfg.check(); err != nil {
		r.Errorf("Correct size or block_size.", "%v", err)
		return r
	}
	if n, err := availableMemory(); err == nil && cfg.Size > n {
		r.Warnf("Make it smaller, or use backend: file; without memory the kernel kills processes.",
			"may grow to %d bytes, and %d bytes of memory are available", cfg.Size, n)
	}
	return r
}

// availableMemory is sys.AvailableMemory; tests replace it.
var availableMemory = sys.AvailableMemory
