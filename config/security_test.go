package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestSecurityIsNotIgnored: a configuration that asks for TLS or authentication where there is none
// is refused instead of being served without (C08, A09). The errors name the keys, never the
// secrets.
func TestSecurityIsNotIgnored(t *testing.T) {
	const secret = "DHHC-1:00:bm90IGEgc2VjcmV0LCBidXQgaXQgY291bGQgYmUgb25l:"
	listener := strings.Replace(minimal, "address: 127.0.0.1", `address: 127.0.0.1, %s: "%s"`, 1)
	subsystem := strings.Replace(minimal, "allow_any_host: true",
		"allow_any_host: true\n    %s: \"%s\"", 1)
	namespace := strings.Replace(minimal, "nsid: 1", `nsid: 1, %s: "%s"`, 1)
	top := minimal + "%s: \"%s\"\n"
	hosts := strings.Replace(minimal, "allow_any_host: true", `hosts: [{nqn: "nqn.2026-11.io.nvmf-target:host", %s: "%s"}]`, 1)
	for _, key := range []string{
		"tls", "psk", "secure_channel", "dhchap_key", "dhchap_ctrl_key",
		"auth",
	} {
		for place, text := range map[string]string{
			"listener": listener, "subsystem": subsystem,
			"namespace": namespace, "top": top, "hosts": hosts,
		} {
			c, err := parse(t, fmt.Sprintf(text, key, secret))
			var ps Problems
			if !errors.As(err, &ps) || c != nil {
				t.Errorf("%s in %s: accepted, and ignored: %v", key, place, err)
				continue
			}
			known := place == "hosts" || place == "listener" && key == "tls"
			testutil.True(t, known || strings.Contains(err.Error(), key+": unknown key"),
				"%s in %s: the error does not name it: %v", key, place, err)
			testutil.True(t, !strings.Contains(err.Error(), secret[:20]),
				"%s in %s: the error repeats the secret: %v", key, place, err)
		}
		name := "NVMF_TARGET_" + strings.ToUpper(key)
		if _, err := parse(t, minimal, name+"="+secret); err == nil ||
			!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), secret[:20]) {
			t.Errorf("%s: %v, want an error that names it and not its value", name, err)
		}
	}
}

// TestDeepNesting: endless nesting is an error and does not crash the program (C01).
func TestDeepNesting(t *testing.T) {
	const n = 10_500 // the parser stops at 10,000
	for name, text := range map[string]string{
		"lists":        strings.Repeat("[", n),
		"closed lists": strings.Repeat("[", n) + strings.Repeat("]", n),
		"mappings":     strings.Repeat("{a: ", n),
		"list entries": strings.Repeat("- ", n) + "a",
		"JSON":         strings.Repeat(`{"listeners":[`, n) + strings.Repeat("]}", n),
		"of a value that is text": minimal + "log: {level: " + strings.Repeat("[", n) +
			strings.Repeat("]", n) + "}\n",
	} {
		c, err := parse(t, text)
		var ps Problems
		if c != nil || !errors.As(err, &ps) {
			t.Errorf("%s: accepted, or another error than a list of problems: %v", name, err)
		} else if len(err.Error()) > 10_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}
