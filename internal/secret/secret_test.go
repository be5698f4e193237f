package secret

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const (
	chap = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	psk  = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
	pem  = "-----BEGIN EC PRIVATE KEY-----\n" +
		"MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoG\n" +
		"-----END EC PRIVATE KEY-----"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestMask: keys are hidden, whole or cut, anywhere in a text, and all else stays.
func TestMask(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a line": "a line", "it begins with DHHC-1:": "it begins with DHHC-1:",
		chap: Hidden, chap[:20]: Hidden,
		"host " + psk + ", and " + chap + "\n":             "host (hidden), and (hidden)\n",
		`{"a":"` + chap + `","b":1}`:                       `{"a":"(hidden)","b":1}`,
		"there is no /v1/hosts/DHHC-1:00:ia6zGodOr4%2FEG0": "there is no /v1/hosts/(hidden)",
		"a\n" + pem + "\nb":                                "a\n(hidden)\nb",
		`"` + strings.ReplaceAll(pem, "\n", `\n`) + `", b`: `"(hidden)", b`,
		pem[:60] + `..."`:                                  `(hidden)..."`,
		"-----BEGIN PUBLIC KEY-----\nMHcCAQEE":             "-----BEGIN PUBLIC KEY-----\nMHcCAQEE",
	} {
		testutil.Equal(t, Mask(text), want, "%q", text)
	}
	n := testing.AllocsPerRun(10, func() { Mask("connect refused: qid 0") })
	testutil.True(t, n == 0, "%v allocations", n)
}

// TestMaskAll: only text that cannot be secret is left of the standard error of a program that
// prints a secret.
func TestMaskAll(t *testing.T) {
	for text, want := range map[string]string{
		"no such secret\n":                          "no such secret\n",
		"curl: (22) The URL returned error: 404":    "curl: (22) The URL returned error: 404",
		"cat: /etc/nvmf-target/keys/host1: no":      "cat: /etc/nvmf-target/keys/host1: no",
		"+ echo " + chap:                            "+ echo (hidden)",
		"> X-Vault-Token: hvs.CAESIJ4rPq0mZb7Y5Wc2": "> X-Vault-Token: hvs.(hidden)",
		"key " + chap[10:58]:                        "key (hidden)",
		"0123456789abcdef0123456789abcdef":          Hidden,
		"/ia6zGodOr4SEG0Zzaw398rpY0wq/p":            "/(hidden)/p",
		"the password is open sesame, I think":      "the password is (hidden), I think",
		"token=c9f0f895-fb98-4ab9-9d2d-7e0f1b2c3d":  Hidden,
	} {
		testutil.Equal(t, MaskAll(text, "open sesame\n", false), want, "%q", text)
	}
	testutil.Equal(t, MaskAll("no "+chap[10:20], "", true), "no ", "a part of a secret at the end")
}
