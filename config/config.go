// Package config is the configuration file: its keys, a strict parser that reports every error with
// its place and a hint, and the checks of what concerns several keys at once.
//
// The sections are the Config types of the packages that they configure, which own the defaults and
// the limits; keys.go says what each key is called and when to set it. Values come from the file
// and from environment variables named NVMF_TARGET_ and the key's path in capitals
// (NVMF_TARGET_LOG_LEVEL=debug), which override it. The value of a variable is YAML, so lists work
// as well: NVMF_TARGET_REACTORS_CPUS='[2, 3]'. Only keys outside of lists have a variable.
package config

import (
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// Config is a whole configuration. The zero value is not usable: Load or Parse makes one, defaults
// included. A field without a comment is what its key says, see keys.go.
type Config struct {
	Log      Log
	Reactors Reactors
	// TCP and RDMA have what the file sets; the rest is for the program to fill in.
	TCP  tcp.Config
	RDMA rdma.Config
	// Disks is how files and block devices are worked on.
	Disks           disk.Engine
	Metrics, Web    Endpoint
	WebTargets      []WebTarget // of web
	Control         Control
	Audit           Audit
	Discovery       Discovery
	Listeners       []Listener
	Hosts           []Host
	Subsystems      []Subsystem
	ShutdownTimeout time.Duration
	// SecureOnly: nothing is served to hosts that have not shown who they are.
	SecureOnly bool
	// Managed is a directory, or "" for none.
	Managed      string
	ManagedPaths []string

	includes []string
	src      *source
	settings Settings
	printed  map[string]string // by programs, with their arguments
	warnings Problems
}

// Warnings are about the text alone, on whatever machine it is used.
func (c *Config) Warnings() Problems { return slices.Clone(c.warnings) }

// Log says what is logged and how.
type Log struct {
	Level slog.Level
	JSON  bool
	// SlowIO is from when on a command is logged, 0 for never.
	SlowIO time.Duration
}

// Reactors sizes the polling loops that serve all I/O.
type Reactors struct {
	// Count is 0 for one reactor for each of CPUs or, without that list, for half of the machine's.
	Count int
	// CPUs pins reactor i to CPUs[i]. Empty: the scheduler places them.
	CPUs []int
	// Memory is in bytes.
	Memory int
	// Spin is negative if the reactors choose; see reactor.DefaultSpin.
	Spin time.Duration
}

// Control says where operators reach the running target.
type Control struct {
	// Socket is a path, AutoSocket, or "" for none.
	Socket string
	// Mode and Group are those of the socket; "" is the group of the process.
	Mode  fs.FileMode
	Group string
	// Listen is invalid if nothing is served on TCP. Else the files are set.
	Listen                     netip.AddrPort
	Certificate, Key, ClientCA string
	// Roles is empty if all may do everything.
	Roles []Role
}

// AutoSocket is the socket that the program chooses.
const AutoSocket = "auto"

// MaxListeners is the largest number of listeners, and of their addresses altogether.
const MaxListeners = 256

// Listener is one NVMe port, or several at addresses that come and go.
type Listener struct {
	// Name is "tcp 10.0.0.1:4420" or "tcp eth0:4420"; listeners after the first one with the same
	// address and port 0 have " #2" and so on behind it. No two have the same name.
	Name string
	// Label is what the file calls it, "" for nothing.
	Label     string
	Transport nvme.TransportType
	Address   ListenAddress
	Port      uint16
	TOS       uint8
	TLS       fabric.TLSPolicy
	// ANAStates has the ANA groups that are not optimized.
	ANAStates map[uint32]nvme.ANAState
	// Required: the target does not run without this listener. Otherwise it waits for it.
	Required bool
}

// Discovery is what the discovery service says, and how hosts find it.
type Discovery struct {
	// NQN is "" for none but the well-known one.
	NQN       string
	Referrals []Referral
	// Security is what hosts need to ask it.
	Security target.Security
	// MDNS: it is announced by multicast DNS, on Interfaces, or if there are none on all that
	// listeners have addresses of.
	MDNS       bool
	Interfaces []string
}

// Referral is another discovery service.
type Referral struct {
	Transport nvme.TransportType
	Address   netip.Addr
	Port      uint16
	NQN       string
	// Hosts are those that are told of it; empty: all.
	Hosts []string
}

// Host is what applies to one host in all subsystems. It does not allow the host to connect.
type Host struct {
	NQN    string
	Limits target.Limits
	Authentication
	// Networks are those that it may connect from; empty: any.
	Networks []netip.Prefix
}

// Subsystem is one NVM subsystem. Namespaces are as in the file; the program sets those of the
// embedded SubsystemConfig.
type Subsystem struct {
	target.SubsystemConfig
	Namespaces []Namespace
}

// Namespace is one namespace and where its blocks are. The program opens the storage and sets
// Device.
type Namespace struct {
	target.NamespaceConfig
	Storage
}
