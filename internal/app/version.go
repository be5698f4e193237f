package app

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"runtime/debug"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/internal/check"
)

// Version returns the linked version, or else the version that Go recorded of the source: a tag or
// a commit. Without either ("go build -buildvcs=false") it is "devel".
func Version(linked string) string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(linked, info)
}

func versionOf(linked string, info *debug.BuildInfo) string {
	switch {
	case linked != "":
		return linked
	case info == nil:
		return "devel"
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	version, suffix := "devel", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			version = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "-dirty"
		}
	}
	if version == "devel" {
		return version
	}
	return version + suffix
}

// Verbs returns the RDMA stack of the devices, or the one that needs none, for iWARP if asked.
func Verbs(iwarp bool) verbs.Provider {
	devices := ibv.New()
	if iwarp {
		return soft.New(soft.Options{Engines: runtime.NumCPU(), Background: true, IWARP: true})
	}
	list, err := devices.Devices()
	if len(list) > 0 || errors.Is(err, fs.ErrPermission) { // its error helps more than a slow stack
		return devices
	}
	return soft.New(soft.Options{Engines: runtime.NumCPU(), Background: true})
}

// Describe returns version and toolchain, and the RDMA devices or why there is only the soft stack.
func Describe(version string) string {
	return fmt.Sprintf("nvmf-target %s (%s, %s/%s)\ntransports: tcp, %s", version,
		runtime.Version(), runtime.GOOS, runtime.GOARCH,
		describeRDMA(ibv.New()))
}

func describeRDMA(p verbs.Provider) string {
	devices, err := p.Devices()
	switch {
	case errors.Is(err, verbs.ErrNotBuilt):
		return "rdma (soft: " + err.Error() + ")"
	case errors.Is(err, verbs.ErrNoDevice), err == nil && len(devices) == 0:
		return "rdma (soft: no device)"
	case err != nil:
		return "rdma (devices cannot be listed: " + err.Error() + ")"
	}
	return "rdma (" + check.Count(len(devices), "device") + ")"
}
