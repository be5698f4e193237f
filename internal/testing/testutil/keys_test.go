package testutil

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLeakedKeys: scripts/leaked-keys.sh finds a key in every form, names the test that printed it,
// and does not print it again.
func TestLeakedKeys(t *testing.T) {
	dir := t.TempDir()
	keys, log := filepath.Join(dir, "keys"), filepath.Join(dir, "step.log")
	t.Setenv(keysFile, keys)
	noted.Clear() // the test may run again in this process
	secret := append([]byte{0xDE, 0xAD, 0x10, 0xBE, 0xEF, 9, 200, 77}, make([]byte, 24)...)
	text := base64.StdEncoding.EncodeToString(secret)
	run := func(printed string) (string, error) {
		t.Helper()
		lines := "=== RUN   TestOne\n=== RUN   TestTwo\n    a.go:1: " + printed +
			"\n=== RUN   TestThree\n"
		if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("../../../scripts/leaked-keys.sh", keys, log).CombinedOutput()
		return string(out), err
	}
	if out, err := run(""); err == nil {
		t.Errorf("without keys nothing can be found: %s", out)
	}
	SecretBytes(t, secret)
	Secret(nil, "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:")
	if out, err := run("nothing"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, printed := range []string{
		fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("% x", secret),
		fmt.Sprint(secret), fmt.Sprintf("%#v", secret),
		fmt.Sprintf("%v", struct{ b []byte }{secret}),
		strings.ReplaceAll(fmt.Sprint(secret), " ", ", "), "DHHC-1:00:" + text + ":",
		"00010203" + "04050607", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX",
	} {
		out, err := run("it is " + printed + ".")
		if err == nil || !strings.Contains(out, "step.log:3") || !strings.Contains(out, "TestTwo") {
			t.Errorf("%s: %v: %s", printed, err, out)
		}
		if strings.Contains(out, printed[:12]) {
			t.Errorf("the key is printed again: %s", out)
		}
	}
	if out, _ := run(fmt.Sprintf("%x", secret)); !strings.Contains(out, "a key of "+t.Name()) {
		t.Errorf("whose key it is: %s", out)
	}
}
