package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func runKey(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	c := keyCommand()
	var out bytes.Buffer
	c.SetIn(strings.NewReader(in))
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.Execute()
	return out.String(), err
}

// TestKey: check accepts the output of gen, and no message repeats a key.
func TestKey(t *testing.T) {
	for args, want := range map[string]string{
		"gen":                      "valid: 32 bytes, no transformation\n",
		"gen --hmac 2":             "valid: 48 bytes, transformation sha384\n",
		"gen -m 1 --key-length 64": "valid: 64 bytes, transformation sha256\n",
		"gen --tls":                "valid for TLS: 32 bytes, hash sha256\n",
		"gen --tls --hmac 2":       "valid for TLS: 48 bytes, hash sha384\n",
		"gen --tls -m 0":           "valid for TLS: 32 bytes, no hash\n",
	} {
		key := testutil.Value(runKey(t, "", strings.Fields(args)...))(t)
		testutil.Equal(t, testutil.Value(runKey(t, key, "check"))(t), want, "%s", args)
		bad := key[:20] + "x" + key[21:]
		if bad == key {
			bad = key[:20] + "y" + key[21:]
		}
		out, err := runKey(t, bad, "check")
		testutil.True(t, err != nil && !strings.Contains(out+err.Error(), key[22:40]), "%s: %q, %v",
			args, out, err)
	}
	const secret = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n"
	for _, args := range []string{
		"gen -l 33", "gen -m 4", "gen --tls -m 3", "gen --tls -l 32", "psk-identity",
		"psk-identity -n h -c s NVMeTLSkey-1:01:" + secret + ":",
		"check NVMeTLSkey-1:01:" + secret + ":", "gen x", "check /nonexistent",
		"check DHHC-1:00:" + secret + ":",
	} {
		if _, err := runKey(t, "", strings.Fields(args)...); err == nil {
			t.Errorf("%s: no error", args)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}

// TestIdentity: for a key of libnvme (its test/psk.c), the output is that of nvme-cli, for both
// ways to derive PSKs.
func TestIdentity(t *testing.T) {
	const (
		key   = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n"
		names = "R01 nqn.psk-test-host nqn.psk-test-subsys"
		want  = "RFC 8446: NVMe1" + names + " iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=\n" +
			"RFC 8446: NVMe0" + names + "\n" +
			"compat: NVMe1" + names + " 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=\n" +
			"compat: NVMe0" + names + "\n"
	)
	nqns := []string{"-n", "nqn.psk-test-host", "-c", "nqn.psk-test-subsys"}
	got, err := runKey(t, key, append([]string{"psk-identity"}, nqns...)...)
	testutil.True(t, err == nil && got == want, "%q, %v", got, err)
	for _, bad := range []string{"", key[:30] + key[31:], strings.Replace(key, "01", "02", 1)} {
		if out, err := runKey(t, bad, append([]string{"psk-identity"}, nqns...)...); err == nil ||
			strings.Contains(out+err.Error(), key[20:30]) {
			t.Errorf("%q, %v", out, err)
		}
	}
}
