package app

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestSubsystemListeners: a reload takes a listener from a subsystem and gives it another one. A
// new name of a listener changes nothing.
func TestSubsystemListeners(t *testing.T) {
	ram := "{nsid: 1, backend: ram, size: 1MiB}"
	two := "{name: one, transport: tcp, address: 127.0.0.1, port: 0}, " +
		"{name: two, transport: tcp, address: 127.0.0.1, port: 0}"
	l := newLive(t, two, sub("allow_any_host: true, listeners: [one]", ram))
	refused := func(at int) {
		t.Helper()
		var refused *host.ConnectError
		_, err := l.connect(testNQN, hostA, at)
		testutil.True(t, errors.As(err, &refused) &&
			refused.Status == nvme.ConnectInvalidParameters, "through listener %d: %v", at, err)
	}
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	refused(1)
	two = strings.Replace(two, "name: one", "name: first", 1)
	changes := l.apply(two, sub("allow_any_host: true, listeners: [first]", ram))
	testutil.True(t, len(changes) == 1 && changes[0].Kind == config.KindListener,
		"a new name changes %v", changes)
	l.apply(two, sub("allow_any_host: true, listeners: [first, two]", ram))
	testutil.Value(l.connect(testNQN, hostA, 1))(t)
	testutil.MustEqual(t, c.Err(), nil, "the host was disconnected")
	l.apply(two, sub("allow_any_host: true, listeners: [two]", ram))
	l.wantEnded("listener that was taken away", c)
	refused(0)
}

// TestPortOfAnotherListener: a subsystem of a network is not served at an address of it that
// another listener gets.
func TestPortOfAnotherListener(t *testing.T) {
	ram := "{nsid: 1, backend: ram, size: 1MiB}"
	port := strconv.Itoa(int(testutil.FreePort(t)))
	network := "{name: net, transport: tcp, address: 127.0.0.0/8, port: " + port + "}"
	l := newLive(t, network, sub("allow_any_host: true, listeners: [net]", ram))
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	l.apply(network+", {transport: tcp, address: 127.0.0.1, port: "+port+"}",
		sub("allow_any_host: true, listeners: [net]", ram))
	l.wantEnded("another listener", c)
	testutil.True(t, testutil.Err(l.connect(testNQN, hostA, 0)) != nil,
		"the subsystem is served by a listener that it does not name")
}
