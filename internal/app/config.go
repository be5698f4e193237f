package app

import (
	"io"
	"runtime"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Parse checks the text of a configuration file; file is its name for messages. See config.Parse.
func Parse(file string, data []byte, environ []string) (*config.Config, error) {
	return config.Parse(file, data, environ, volumes.Backends)
}

// reactorCPUs returns the CPU of each reactor, -1 for a reactor that is not pinned.
func reactorCPUs(c config.Reactors) []int {
	if len(c.CPUs) > 0 {
		return c.CPUs
	}
	n := c.Count
	if n == 0 {
		n = max(1, runtime.NumCPU()/2)
	}
	return slices.Repeat([]int{-1}, n)
}

// uses reports whether any listener uses the transport.
func uses(listeners []config.Listener, t nvme.TransportType) bool {
	return slices.ContainsFunc(listeners, func(l config.Listener) bool { return l.Transport == t })
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
