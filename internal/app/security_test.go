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

// testTLSKeys are the keys for TLS of sequences.
var testTLSKeys = []string{
	"NVMeTLSkey-1:01:39WfIqopwsE/W3WvJ1cNwnpPmnfA/inWha7162vDmvjnuaAp:",
	"NVMeTLSkey-1:01:kojrX73O7ANb01ctc1MTH15DbEBg7AOxCPP/rIPn/8vgclDS:",
	"NVMeTLSkey-1:01:vSSNw2uszTgLGuTp9VOj+jSDKf8bqP+dQeLGIASTGkWZlZlM:",
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

// TestFinalComesLast: a subsystem is gone for good only after all else has changed.
func TestFinalComesLast(t *testing.T) {
	one := sub(anyHosts, inRAM)
	l := newLive(t, listenAny, one+strings.Replace(one, testNQN, testNQN+"-more", 1))
	why := func() string { return fmt.Sprint(testutil.Err(l.connect(testNQN+"-more", hostA, 0))) }
	during := ""
	l.s.engine.Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		during = why()
		return nil
	}}
	l.apply(listenAny, one+"log: {slow_io: 1s}\n")
	after := why()
	testutil.True(t, strings.Contains(during, "Connect Invalid Parameters") &&
		!strings.Contains(during, "DNR") && strings.Contains(after, "DNR"), "%q, then %q", during,
		after)
}
