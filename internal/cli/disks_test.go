package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var testDisks = []observed.Disk{
	{
		Name: "sda", Path: "/dev/disk/by-id/ata-Samsung", Bus: "sata", Model: " Samsung\x1b  SSD",
		SizeBytes:      750156374016,
		BlockSizeBytes: 512, Rotational: true, Partitions: []string{"sda1"},
		Uses: []string{"mounted at / (sda1)", "namespace 1 of x"}, NotExportable: "in use",
		Health: observed.DiskHealth{
			State: "warning", Notes: []string{"3 bad sectors"}, Celsius: 34, PowerOnHours: 20000,
			UsedPercent: 3,
		},
	},
	{
		Name: "nvme0n1", Bus: "nvme", SizeBytes: 1 << 42, BlockSizeBytes: 4096, ReadOnly: true,
		Partitions: []string{"nvme0n1p1"}, Uses: []string{},
		Health: observed.DiskHealth{
			State: "unknown", Notes: []string{"only root may ask"}, PowerOnHours: -1,
			UsedPercent: -1,
		},
	},
}

// runDisks runs the command. It reports whether local was called.
func runDisks(t *testing.T, args ...string) (out string, local bool, err error) {
	t.Helper()
	cmd := Disks(func(*cobra.Command) ([]observed.Disk, error) {
		local = true
		return nil, nil
	})
	cmd.Flags().String("config", "", "")
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return b.String(), local, err
}

// TestDisks: the running target answers. Without one the command calls local, unless a target was
// named.
func TestDisks(t *testing.T) {
	src, none := source(), filepath.Join(t.TempDir(), "none")
	src.Disks = func(context.Context) ([]observed.Disk, error) { return testDisks, nil }
	socket := serve(t, src)
	out, local, err := runDisks(t, "--socket", socket)
	want := []string{
		"DISK          BUS             MODEL         SERIAL  SIZE       BLOCK  HEALTH",
		"/dev/sda      sata, rotating  Samsung? SSD  -       698.6 GiB  512    " +
			"warning: 3 bad sectors, 34 °C, 20000 h, 3% worn  mounted at / (sda1), " +
			"namespace 1 of x  no: in use                                " +
			"/dev/disk/by-id/ata-Samsung\n",
		"/dev/nvme0n1  nvme            -             -       4 TiB      4096   only root may ask",
		"yes, read-only, but it has partitions: 1  -\n",
	}
	for _, w := range want {
		testutil.True(t, strings.Contains(out, w), "%q is missing in\n%s", w, out)
	}
	testutil.True(t, err == nil && !local, "%v, local %v", err, local)
	out, _, err = runDisks(t, "--socket", socket, "-o", "json")
	var list []observed.Disk
	if err := errors.Join(err, json.Unmarshal([]byte(out), &list)); err != nil ||
		!reflect.DeepEqual(list, testDisks) {
		t.Errorf("%v, %+v", err, list)
	}

	if _, _, err := runDisks(t, "--socket", none); err == nil {
		t.Error("a target that was named is not there")
	}
	out, local, err = runDisks(t, "--config", "x")
	testutil.True(t, err == nil && local && strings.Contains(out, "no other block device"),
		"%s, %v, local %v", out, err, local)
	src.Disks = func(context.Context) ([]observed.Disk, error) {
		return nil, control.NewProblem(503, "a disk takes long", "")
	}
	_, local, err = runDisks(t, "--socket", serve(t, src))
	testutil.True(t, err != nil && !local, "%v, local %v", err, local)
}

func TestReported(t *testing.T) {
	for in, want := range map[string]string{"": "-", " a  b ": "a b", "\x1b[2J": "?[2J", "é": "?"} {
		testutil.Equal(t, reported(in), want, "%q", in)
	}
}
