package app

import (
	"io"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// Schema writes the JSON Schema of the configuration file.
func Schema(w io.Writer) error {
	text, err := config.Schema(volumes.Backends)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
