// Package config is the configuration file: its keys, a strict parser that reports every error with
// its place and a hint, and the checks across several keys.
//
// The sections are the Config types of the packages that they configure, which own the defaults and
// the limits; keys.go has the name of each key and when to set it. Values come from the file and
// from environment variables, which override it. A variable is named NVMF_TARGET_ and the path of
// the key in capitals (NVMF_TARGET_LOG_LEVEL=debug). Its value is YAML, so lists work as well:
// NVMF_TARGET_REACTORS_CPUS='[2, 3]'. Only keys outside lists have a variable.
package config

import (
	"io/fs"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Config is a complete configuration. Load or Parse makes one, including the defaults; the zero
// value is not usable. The keys in keys.go document the fields without a comment.
type Config struct {
	Log      Log
	Reactors Reactors
	// TCP and RDMA hold the settings of the file; the program fills in the rest.
	TCP  tcp.Config
	RDMA rdma.Config
	// Disks is the I/O engine of files and block devices.
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
	// SecureOnly: hosts that have not proven their identity are served nothing.
	SecureOnly bool
	// Managed is a directory, or "" for none.
	Managed      string
	ManagedPaths []string

	includes []string
	src      *lang.Source // nil if the configuration was not parsed
	printed  Option
	settings Settings
}

// Log selects the lines to log and their format.
type Log struct {
	Level slog.Level
	JSON  bool
	// SlowIO is the latency from which a command is logged; 0 means never.
	SlowIO time.Duration
}

// Reactors sizes the polling loops that serve all I/O.
type Reactors struct {
	// Count is the number of reactors; 0 means one for each of CPUs or, without CPUs, one for every
	// second processor of the machine.
	Count int
	// CPUs pins reactor i to CPUs[i]. If empty, the scheduler places them.
	CPUs []int
	// Memory is the data memory of each reactor, in bytes.
	Memory int
	// Spin is the longest time for which an idle reactor polls before it sleeps. A negative value
	// leaves it to the reactors; see reactor.DefaultSpin.
	Spin time.Duration
}

// Control says where operators reach the running target.
type Control struct {
	// Socket is a path, AutoSocket, or "" for none.
	Socket string
	// Mode and Group belong to the socket; Group "" is the group of the process.
	Mode  fs.FileMode
	Group string
	// Listen is invalid if nothing is served on TCP. Otherwise the files are set.
	Listen                     netip.AddrPort
	Certificate, Key, ClientCA string
	// Roles may be empty, which gives everybody every role.
	Roles []Role
}

// AutoSocket lets the program choose the socket.
const AutoSocket = "auto"

// MaxListeners is the maximum number of listeners, and of all their addresses.
const MaxListeners = 256

// Listener is one NVMe port, or several at addresses that come and go.
type Listener struct {
	// Name is "tcp 10.0.0.1:4420" or "tcp eth0:4420"; listeners after the first one with the same
	// address and port 0 have " #2" and so on behind it. No two have the same name.
	Name string
	// Label is the name given in the file, or "".
	Label     string
	Transport nvme.TransportType
	Address   ListenAddress
	Port      uint16
	TOS       uint8
	TLS       fabric.TLSPolicy
	// ANAStates has the ANA groups that are not optimized.
	ANAStates map[uint32]nvme.ANAState
	// Required: the target does not run without this listener. Otherwise the target waits for it.
	Required bool
}

// Discovery configures the discovery service and its announcements.
type Discovery struct {
	// NQN is "" if only the well-known one is used.
	NQN       string
	Referrals []Referral
	// Security is required of hosts that ask the discovery service.
	Security target.Security
	// MDNS announces the service by multicast DNS on Interfaces or, if Interfaces is empty, on all
	// interfaces with an address of a listener.
	MDNS       bool
	Interfaces []string
}

// Referral is another discovery service.
type Referral struct {
	Transport nvme.TransportType
	Address   netip.Addr
	Port      uint16
	NQN       string
	// Hosts are the NQNs that receive the referral; empty means all.
	Hosts []string
}

// Host has the settings of one host for all subsystems. It does not allow the host to connect.
type Host struct {
	NQN    string
	Limits qos.Limits
	Authentication
	// Networks are the networks from which the host may connect; empty means any.
	Networks []netip.Prefix
}

// Subsystem is one NVM subsystem. Namespaces are as in the file. The program sets the namespaces of
// the embedded SubsystemConfig.
type Subsystem struct {
	target.SubsystemConfig
	Namespaces []Namespace
}

// Namespace is one namespace and its storage. The program opens the storage and sets Device.
type Namespace struct {
	target.NamespaceConfig
	Storage
}
