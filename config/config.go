// Package config has the keys of the configuration file and checks their values. Package
// config/lang reads the file.
//
// The sections are the Config types of the packages that they configure. These packages own the
// defaults and the limits. Each key stands beside its field. Values come from the file and from
// environment variables, which override it. The name of a variable is NVMF_TARGET_ and the path of
// the key in capitals (NVMF_TARGET_LOG_LEVEL=debug). Its value is YAML, so lists work as well:
// NVMF_TARGET_REACTORS_CPUS='[2, 3]'. Only keys outside lists have a variable.
package config

import (
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
)

// Config is a complete configuration. Load or Parse makes one, including the defaults; the zero
// value is not usable. The keys document the fields without a comment.
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
	Group           Group
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

// keys is the schema of the file. It sets the defaults.
func (c *Config) keys(backends []Backend) []lang.Key {
	c.TCP.SetDefaults()
	c.RDMA.SetDefaults()
	c.ShutdownTimeout = 10 * time.Second
	return append([]lang.Key{c.includeKey()}, append(c.managedKeys(), []lang.Key{
		lang.NewKey("log", lang.Mapping(c.Log.keys()), "The log, written to stderr."),
		lang.NewKey("reactors", lang.Mapping(c.Reactors.keys()),
			"The polling threads that serve all I/O.").NeedsRestart(),
		lang.NewKey("tcp", lang.Mapping(tcpKeys(&c.TCP)),
			"The TCP transport. Changes apply to new connections."),
		lang.NewKey("rdma", lang.Mapping(rdmaKeys(&c.RDMA)),
			"The RDMA transport. Changes apply to new connections."),
		lang.NewKey("disks", lang.Mapping(diskKeys(&c.Disks)),
			"How files and disks are read and written.").NeedsRestart(),
		lang.NewKey("metrics", lang.Mapping(metricsKeys(&c.Metrics)), "Metrics for monitoring."),
		lang.NewKey("web", lang.Mapping(c.webKeys()), "The page for browsers."),
		lang.NewKey("control", lang.Mapping(c.Control.keys()),
			"Where `nvmf-target status` and other commands reach the running target."),
		lang.NewKey("audit", lang.Mapping(c.Audit.keys()),
			"The record of security events and of administration. It is always in the log, as "+
				"lines with `audit=`."),
		lang.NewKey("discovery", lang.Mapping(c.Discovery.keys()),
			"How hosts find subsystems."),
		lang.NewKey("secure_only", lang.Bool(&c.SecureOnly),
			"All subsystems and the discovery service require `security`, by default `auth`. A "+
				"configuration is refused if it has `allow_any_host`, hosts of a subsystem "+
				"without a key, or metrics or a page that other machines can reach without a "+
				"certificate and a token. Set it when no mistake may give access to hosts that "+
				"have not proven their identity."),
		lang.NewKey("listeners", lang.List(&c.Listeners, 0, MaxListeners, (*Listener).value),
			"The addresses where hosts connect.").Without("required").Extended(),
		lang.NewKey("hosts", lang.List(&c.Hosts, 0, 4096, (*Host).value),
			"Settings of single hosts in all subsystems. A host needs no entry here; `hosts` of "+
				"a subsystem allows it to connect.").Extended(),
		lang.NewKey("subsystems", lang.List(&c.Subsystems, 0, 1024,
			func(s *Subsystem) lang.Value { return s.value(backends) }),
			"The subsystems that hosts connect to.").Without("required").
			Shared("nqn", "hosts", "namespaces"),
		lang.NewKey("group", lang.Mapping(c.Group.keys()),
			"Other gateways to the same images of Ceph. Set it when hosts should survive the "+
				"loss of this machine.").NeedsRestart(),
		lang.NewKey("shutdown_timeout",
			lang.Duration(&c.ShutdownTimeout, time.Second, 10*time.Minute),
			"How long a stop (SIGTERM) waits for connections to drain. Set it when the service "+
				"manager or a failover allows less time, or slow disks need more."),
	}...)...)
}

// includeKey is the key for more files.
func (c *Config) includeKey() lang.Key {
	return lang.IncludeKey(&c.includes,
		"More files, which are read as if they were part of this one. A pattern with `*`, `?` "+
			"or `[a-z]` names the files that match, sorted; files that begin with a dot do not. "+
			"Paths are relative to the directory of this file. Lists of listeners, hosts, "+
			"referrals and subsystems are appended to the lists of earlier files. Entries of "+
			"several files with the same `nqn` are one subsystem: one of them describes it, the "+
			"others have only `nqn`, `hosts` and `namespaces`. No other key may be in two "+
			"files, and included files cannot include other files. No environment variable "+
			"overrides this key. Set it when several people or programs write parts of the "+
			"configuration.").
		Without("none")
}
