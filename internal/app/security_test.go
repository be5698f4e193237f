package app

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const testSecret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

// connectKey connects a host with the key of the tests.
func (l *live) connectKey(nqn, hostNQN string) (*host.Controller, error) {
	ctx := testutil.Context(l.t)
	o := hostOptions(nqn)
	o.HostNQN = hostNQN
	var err error
	o.Key, err = auth.ParseKey(testSecret)
	testutil.MustTrue(l.t, err == nil, "%v", err)
	c, err := host.Connect(ctx, host.TCP{Addr: l.s.Addrs()[0].AddrPort}, o)
	if err == nil {
		l.t.Cleanup(c.Close)
	}
	return c, err
}

// TestSecurityReload: a host that does not meet the requirements of a new configuration is
// disconnected, and finds nothing any more. Others stay, also when less is required and keys are
// removed together with that.
func TestSecurityReload(t *testing.T) {
	const (
		ram  = "{nsid: 1, backend: ram, size: 1MiB}"
		keys = "hosts: [{nqn: " + hostA + `, dhchap_key: "` + testSecret + "\"}]\n"
		both = "hosts: [" + hostA + ", " + hostB + "]"
	)
	l, log := &live{t: t, dir: t.TempDir()}, new(testutil.Log)
	l.s = started(t, Options{Config: l.parse(listenAny, sub(both, ram)+keys), Log: log.Logger()})
	connected := func(c *host.Controller, err error) *host.Controller {
		t.Helper()
		testutil.Must(t, err)
		return c
	}
	nothing := func(nqn, hostNQN string) {
		t.Helper()
		var unknown, refused *host.ConnectError
		_, err := l.connect(testNQN+"-unknown", hostB, 0)
		testutil.MustTrue(t, errors.As(err, &unknown), "%v", err)
		if _, err = l.connect(nqn, hostNQN, 0); !errors.As(err, &refused) || *refused != *unknown {
			t.Errorf("%s at %s: %v, of an unknown subsystem %v", hostNQN, nqn, err, unknown)
		}
	}
	a, b := connected(l.connectKey(testNQN, hostA)), connected(l.connect(testNQN, hostB, 0))

	secure := sub(both+", security: auth", ram) + keys
	changes, ps := l.s.Plan(l.parse(listenAny, secure))
	testutil.Equal(t, fmt.Sprint(changes), "[~ subsystem "+testNQN+": security: none -> auth]", "")
	got := fmt.Sprint(ps)
	testutil.True(t, strings.Contains(got, hostB+" has no dhchap_key") && !ps.Failed(), "%v", got)
	l.apply(listenAny, secure)
	l.wantEnded("a host without a key", b)
	testutil.True(t, strings.Contains(log.String(),
		"security requires that the host authenticates"), "the log does not say why")
	nothing(testNQN, hostB)
	testutil.Check(t, testutil.Err(l.connect(nvme.DiscoveryNQN, hostB, 0)))
	looked := false
	l.s.engine.Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		nothing(testNQN, hostB) // until all else has changed
		looked = true
		return nil
	}}
	l.apply(listenAny, sub(both, ram)+keys+"log: {slow_io: 1s}\n")
	testutil.True(t, looked, "the host had access too early, or nobody has looked")
	connected(l.connect(testNQN, hostB, 0)).Close()

	l.apply(listenAny, sub("hosts: ["+hostA+"]", ram)+keys+"secure_only: true\n")
	nothing(nvme.DiscoveryNQN, hostB)
	nothing(testNQN, hostB)
	d := connected(l.connectKey(nvme.DiscoveryNQN, hostA))
	ctx := testutil.Context(t)
	_, list, err := hosttest.Discover(ctx, d)
	testutil.True(t, err == nil && len(list) == 2, "%d entries, %v", len(list), err)

	l.apply(listenAny, sub(both, ram)) // neither keys
	for _, c := range []*host.Controller{a, d} {
		testutil.Equal(t, testutil.Err(c.IdentifyController(ctx)), nil,
			"less is required, and a host is disconnected")
	}
	b = connected(l.connect(testNQN, hostB, 0))

	anyHost := sub("allow_any_host: true, security: auth", ram)
	l.apply(listenAny, anyHost+keys)
	l.wantEnded("a host without a key", b)
	testutil.Check(t, testutil.Err(a.IdentifyController(ctx)))
	l.apply(listenAny, anyHost)
	l.wantEnded("a host that has lost its key", a)
	nothing(testNQN, hostA)
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
