package testutil

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// keysFile is the environment variable with the file that scripts/test.sh passes to all tests.
const keysFile = "NVMF_TEST_KEYS"

// Secret records a key, in the interchange format (DHHC-1, NVMeTLSkey-1), that no output may
// contain. scripts/leaked-keys.sh searches the output of all tests for it. t is the test that uses
// the key, nil for several tests. Tests that make keys, or print data derived from keys, call it.
func Secret(t testing.TB, text string) {
	middle := strings.Split(text, ":")
	if len(middle) != 4 {
		panic("no key in the interchange format")
	}
	raw, err := base64.StdEncoding.DecodeString(middle[2])
	if err != nil {
		panic("no base64 in a key")
	}
	note(t, append(forms(raw), middle[2][:secretText]))
}

// SecretBytes records a secret derived from a key.
func SecretBytes(t testing.TB, secret []byte) {
	note(t, append(forms(secret), base64.StdEncoding.EncodeToString(secret)[:secretText]))
}

const (
	secretText  = 24 // characters of base64 to look for
	secretBytes = 8  // bytes in another form
)

// forms returns a secret in the forms of careless formatting.
func forms(secret []byte) []string {
	b := secret[:secretBytes]
	list := strings.Trim(fmt.Sprint(b), "[]")
	return []string{
		fmt.Sprintf("%x", b), fmt.Sprintf("%X", b), fmt.Sprintf("% x", b), list,
		strings.ReplaceAll(list, " ", ", "), strings.TrimSuffix(fmt.Sprintf("%#v", b)[7:], "}"),
	}
}

var noted sync.Map // secrets by their first form

func note(t testing.TB, forms []string) {
	name := os.Getenv(keysFile)
	if _, known := noted.LoadOrStore(forms[0], true); known || name == "" {
		return
	}
	test := os.Args[0]
	if t != nil {
		test = t.Name()
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(strings.Join(forms, "\t"+test+"\n") + "\t" + test + "\n")
	}
	if err != nil {
		panic(err)
	}
	_ = f.Close()
}
