package app

import (
	"errors"
	"io"
	"os"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// Parse checks the text of a configuration file; file is its name for messages. See config.Parse.
func Parse(file string, data []byte, environ []string) (*config.Config, error) {
	return config.Parse(file, data, environ, volumes.Backends)
}

// Schema writes the JSON Schema of the configuration file.
func Schema(w io.Writer) error {
	text, err := config.Schema(volumes.Backends)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// Disks lists the disks of this machine with their namespaces. file is optional if not required.
func Disks(file string, required bool, environ []string) ([]observed.Disk, error) {
	c, err := config.LoadAll(file, environ, volumes.Backends)
	if err != nil && (required || !errors.Is(err, os.ErrNotExist)) {
		return nil, err
	}
	return volumes.ListDisks(c)
}
