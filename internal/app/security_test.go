package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const testSecret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

// testSecrets are the keys of sequences.
var testSecrets = []string{
	testSecret,
	"DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:",
	"DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:",
}

// TestAccessComesLast: a host has access without a key only after all else has changed.
func TestAccessComesLast(t *testing.T) {
	const both = "hosts: [" + hostA + ", " + hostB + "]"
	l := newLive(t, listenAny, sub(both+", security: auth", inRAM))
	looked := false
	l.s.engine.Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		looked = testutil.Err(l.connect(testNQN, hostB, 0)) != nil
		return nil
	}}
	l.apply(listenAny, sub(both, inRAM)+"log: {slow_io: 1s}\n")
	testutil.True(t, looked, "the host had access too early, or nobody has looked")
	testutil.Check(t, testutil.Err(l.connect(testNQN, hostB, 0)))
}

// TestSecureOnly: security: auth becomes the default, which changes show, also with a variable.
func TestSecureOnly(t *testing.T) {
	text := strings.Replace(validFile, "allow_any_host: true", "hosts: ["+hostA+"]", 1) +
		"hosts: [{nqn: " + hostA + `, dhchap_key: "` + testSecret + "\"}]\n" +
		"metrics: {listen: \"127.0.0.1:9\"}\n"
	before := parsed(t, text)
	after := testutil.Value(
		Parse("test.yaml", []byte(text), []string{"NVMF_TARGET_SECURE_ONLY=true"}))(t)
	got := fmt.Sprint(config.Diff(before.Settings(), after.Settings()))
	for _, want := range []string{
		"secure_only: false -> true", "discovery.security: none -> auth",
		"~ subsystem " + testNQN + ": security: none -> auth",
	} {
		testutil.True(t, strings.Contains(got, want), "%s has no %q", got, want)
	}
	_, err := Parse("test.yaml", []byte(text),
		[]string{"NVMF_TARGET_SECURE_ONLY=true", "NVMF_TARGET_DISCOVERY_SECURITY=none"})
	testutil.True(t, err != nil && strings.Contains(err.Error(), "NVMF_TARGET_DISCOVERY_SECURITY"),
		"%v", err)
}
