package app

import (
	"runtime/debug"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestVersion(t *testing.T) {
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	revision := debug.BuildSetting{
		Key:   "vcs.revision",
		Value: "0123456789abcdef0123456789abcdef01234567",
	}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, test := range []struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"v1.2.3", build("v1.2.2"), "v1.2.3"},
		{"", build("v1.2.2", revision), "v1.2.2"},
		{"", build("(devel)", revision), "0123456789ab"},
		{"", build("", revision, modified), "0123456789ab-dirty"},
		{"", build("(devel)", modified), "devel"},
		{"", nil, "devel"},
	} {
		testutil.Equal(t, versionOf(test.linked, test.info), test.want,
			"linked %q, built from %+v", test.linked, test.info)
	}
}
