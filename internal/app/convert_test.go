package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/convert"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestConvert: what is converted passes check, and what would not is reported with its place in the
// other target's file.
func TestConvert(t *testing.T) {
	needTLS(t)
	psk, err := auth.NewTLSKey(auth.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Secret(t, psk.Reveal())
	for name, from := range map[string]func(string, []byte) (*convert.Result, error){
		"nvmet.json": convert.NVMet, "nvmet-short.json": convert.NVMet, "spdk.json": convert.SPDK,
	} {
		var out, notes, checked bytes.Buffer
		err := Convert(from, filepath.Join("../convert/testdata", name), &out, &notes)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if name != "nvmet-short.json" && !strings.Contains(notes.String(), "left out") {
			t.Errorf("%s: no notes", name)
		}
		file, dir := filepath.Join(t.TempDir(), "nvmf-target.yaml"), t.TempDir()
		text := bytes.ReplaceAll(out.Bytes(), []byte("/etc/spdk/"), []byte(dir+"/"))
		if err := errors.Join(os.WriteFile(file, text, 0o600),
			os.WriteFile(filepath.Join(dir, "key0"), []byte(
				"DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "key1"), []byte(
				"DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "psk0"), []byte(psk.Reveal()), 0o600),
		); err != nil {
			t.Fatal(err)
		}
		if err := Check(file, nil, &checked); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	text, err := os.ReadFile("../convert/testdata/nvmet-short.json")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"nsid": 1`), []byte(`"nsid": 9000`), 1)
	if err := os.WriteFile(broken, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, notes bytes.Buffer
	err = Convert(convert.NVMet, broken, &out, &notes)
	want := broken + ":17:9: subsystems[0].namespaces[0].nsid: 9000 is too large"
	if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
		t.Errorf("%v, want %q; written: %q", err, want, out.String())
	}
}
