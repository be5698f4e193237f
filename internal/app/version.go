package app

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
)

// Version is linked, or what Go recorded of the source, or "devel".
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(len(s.Value), 12)]
		}
	}
	return "devel"
}

// Describe is the version, the toolchain, and whether RDMA is built in and how many devices there
// are.
func Describe(version string) string {
	return fmt.Sprintf("nvmf-target %s (%s, %s/%s)\ntransports: tcp, %s", version,
		runtime.Version(), runtime.GOOS, runtime.GOARCH,
		describeRDMA(ibv.New()))
}

func describeRDMA(p verbs.Provider) string {
	devices, err := p.Devices()
	switch {
	case errors.Is(err, verbs.ErrNotBuilt):
		return "no rdma: " + err.Error()
	case errors.Is(err, verbs.ErrNoDevice):
		return "rdma (no device)"
	case err != nil:
		return "rdma (devices cannot be listed: " + err.Error() + ")"
	}
	return "rdma (" + count(len(devices), "device") + ")"
}
