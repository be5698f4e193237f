package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/convert"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestConvert: converted configurations pass check, and unsuitable items are reported with their
// place in the file of the other target.
func TestConvert(t *testing.T) {
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
	psk := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
	testutil.Secret(t, psk.Reveal())
	for name, from := range map[string]string{
		"nvmet.json": "nvmet", "nvmet-short.json": "nvmet", "spdk.json": "spdk",
	} {
		var out, notes, checked bytes.Buffer
		err := Converters[from].Convert(t.Context(), filepath.Join("../convert/testdata", name),
			&out, &notes)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		testutil.True(t, name == "nvmet-short.json" || strings.Contains(notes.String(), "left out"),
			"%s: no notes", name)
		file, dir := filepath.Join(t.TempDir(), "nvmf-target.yaml"), t.TempDir()
		text := bytes.ReplaceAll(out.Bytes(), []byte("/etc/spdk/"), []byte(dir+"/"))
		testutil.Must(t, errors.Join(os.WriteFile(file, text, 0o600),
			os.WriteFile(filepath.Join(dir, "key0"), []byte(
				"DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "key1"), []byte(
				"DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "psk0"), []byte(psk.Reveal()), 0o600),
		))
		err = check.File(file, nil, &checked)
		testutil.True(t, err == nil, "%s: %v\n%s", name, err, out.String())
	}
}

// fakeMachine has block sizes by path: one number for a device, two for a file, from stat(2) and of
// its file system.
type fakeMachine map[string][]uint64

func (m fakeMachine) Storage(path string) (s convert.Storage, ok bool) {
	sizes, ok := m[path]
	switch len(sizes) {
	case 1:
		s = convert.Storage{Device: true, BlockSize: sizes[0]}
	case 2:
		s = convert.Storage{BlockSize: sizes[0], FileSystem: sizes[1]}
	}
	return s, ok
}

// TestConvertForms: the forms of configurations of real targets, and their results on a machine
// with the storage given in the test. -rewrite writes the current results.
func TestConvertForms(t *testing.T) {
	forms := 0
	datadriven.Walk(t, "../convert/testdata/forms", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			forms++
			machine := fakeMachine{}
			for _, a := range d.CmdArgs {
				for _, v := range a.Vals {
					n, err := strconv.ParseUint(v, 10, 64)
					if err != nil {
						d.Fatalf(t, "%s: %v", a.Key, err)
					}
					machine[a.Key] = append(machine[a.Key], n)
				}
			}
			k, ok := Converters[d.Cmd]
			if !ok {
				d.Fatalf(t, "%s is not a target", d.Cmd)
			}
			r, err := k.convert("f", []byte(d.Input),
				convert.Options{Machine: machine, Check: parses})
			if err != nil {
				out := err.Error() + "\n"
				if r != nil {
					for _, n := range r.Notes {
						out += n.String() + "\n"
					}
				}
				return out
			}
			if err := parses(r.YAML); err != nil {
				d.Fatalf(t, "check refuses the result: %v", err)
			}
			return string(r.YAML)
		})
	})
	testutil.True(t, forms >= 30, "%d forms", forms)
}
