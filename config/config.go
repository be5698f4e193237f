// Package config is the configuration file: its types, a strict parser that reports every error
// with its place and its mend, defaults and validation. It imports nothing else of this module.
//
// Values come from three places, the later winning: the defaults (the "default" tags below), the
// file, and environment variables named NVMF_TARGET_ and the key's path in capitals
// (NVMF_TARGET_LOG_LEVEL=debug). The value of a variable is YAML, so lists work as well:
// NVMF_TARGET_REACTORS_CPUS='[2, 3]'. Only keys outside of lists have a variable.
package config

import "time"

// Config is a whole configuration. The zero value is not usable: Load or Parse makes one, defaults
// included.
type Config struct {
	Log        Log         `mapstructure:"log"`
	Reactors   Reactors    `mapstructure:"reactors"`
	TCP        TCP         `mapstructure:"tcp"`
	RDMA       RDMA        `mapstructure:"rdma"`
	Disks      Disks       `mapstructure:"disks"`
	Metrics    Metrics     `mapstructure:"metrics"`
	Listeners  []Listener  `mapstructure:"listeners" validate:"required,max=256,dive"`
	Subsystems []Subsystem `mapstructure:"subsystems" validate:"required,max=1024,dive"`
	// ShutdownTimeout is how long a stop may take to drain before connections are cut.
	ShutdownTimeout time.Duration `mapstructure:"shutdown_timeout" default:"10s" validate:"min=1s,max=10m"`

	src *source
}

// Log says what is logged and how.
type Log struct {
	Level  string `mapstructure:"level" default:"info" validate:"oneof=debug info warn error"`
	Format string `mapstructure:"format" default:"text" validate:"oneof=text json"`
}

// Reactors sizes the polling loops that serve all I/O.
type Reactors struct {
	// Count is the number of reactors; 0 means one for each CPU in CPUs or, without that list, half
	// of the machine's CPUs.
	Count int `mapstructure:"count" default:"0" validate:"min=0,max=256"`
	// CPUs pins reactor i to CPUs[i]. Empty: the scheduler places them.
	CPUs []int `mapstructure:"cpus" validate:"max=256,dive,min=0,max=4095"`
	// Memory is the data arena of each reactor in bytes; it bounds the transfers in flight.
	Memory Size `mapstructure:"memory" default:"64MiB" validate:"sizemin=8MiB,sizemax=64GiB"`
	// Spin is the longest time a reactor polls without finding work before it sleeps.
	Spin time.Duration `mapstructure:"spin" default:"200us" validate:"min=0s,max=100ms"`
	// SpinShare bounds what all those polls may take, in percent of a CPU for each reactor.
	SpinShare int `mapstructure:"spin_share" default:"100" validate:"min=1,max=100"`
}

// TCP tunes the TCP transport.
type TCP struct {
	// QueueDepth is the largest number of commands a queue takes.
	QueueDepth int `mapstructure:"queue_depth" default:"128" validate:"min=32,max=1024"`
	// InCapsuleSize is how many data bytes a command capsule of an I/O queue may carry.
	InCapsuleSize Size `mapstructure:"in_capsule_size" default:"128KiB" validate:"sizemin=4KiB,sizemax=1MiB,multiple=16"`
	// HeaderDigest and DataDigest allow hosts to turn the CRC32C of headers and of data on.
	HeaderDigest bool `mapstructure:"header_digest" default:"true"`
	DataDigest   bool `mapstructure:"data_digest" default:"true"`
	// QueueMemory bounds the memory of all queues: 16 KiB for each, and 768 bytes for each command
	// of its depth.
	QueueMemory Size `mapstructure:"queue_memory" default:"1GiB" validate:"sizemin=1MiB"`
	// BusyPoll is how long the kernel may poll the network device when a receive finds nothing; 0
	// leaves it to interrupts.
	BusyPoll time.Duration `mapstructure:"busy_poll" default:"0s" validate:"min=0s,max=10ms"`
	// CongestionControl is the kernel's congestion control of the connections; "" is the system's.
	CongestionControl string `mapstructure:"congestion_control"`
	// MaxConnections and MaxConnectionsPerHost bound the connections of all hosts and of one
	// address.
	MaxConnections        int `mapstructure:"max_connections" default:"8192" validate:"min=1,max=65536"`
	MaxConnectionsPerHost int `mapstructure:"max_connections_per_host" default:"4096" validate:"min=1,max=65536"`
}

// RDMA tunes the RDMA transport.
type RDMA struct {
	// QueueDepth is the largest number of commands a queue takes.
	QueueDepth int `mapstructure:"queue_depth" default:"128" validate:"min=32,max=1024"`
	// InCapsuleSize is how many data bytes a command capsule of an I/O queue may carry.
	InCapsuleSize Size `mapstructure:"in_capsule_size" default:"4KiB" validate:"sizemax=64KiB,multiple=16"`
	// QueueMemory bounds the registered memory of all queues: queue depth times in-capsule size for
	// each, and a little more.
	QueueMemory Size `mapstructure:"queue_memory" default:"1GiB" validate:"sizemin=1MiB"`
	// SharedReceives is how many commands the queues of a reactor and device may send at once to
	// one shared receive queue; 0: each has its own.
	SharedReceives int `mapstructure:"shared_receives" validate:"min=0,max=32768"`
	// MaxConnections and MaxConnectionsPerHost bound the connections (queues) of all hosts and of
	// one address.
	MaxConnections        int `mapstructure:"max_connections" default:"4096" validate:"min=1,max=65535"`
	MaxConnectionsPerHost int `mapstructure:"max_connections_per_host" default:"1024" validate:"min=1,max=65535"`
}

// Disks says how files and block devices are worked on.
type Disks struct {
	// Engine makes the system calls: "io_uring", "threads", or "auto", which is io_uring where that
	// is allowed.
	Engine string `mapstructure:"engine" default:"auto" validate:"oneof=auto io_uring threads"`
	// SQPoll has a thread of the kernel fetch submissions; it takes a CPU for each reactor while
	// there is work.
	SQPoll bool `mapstructure:"sqpoll"`
	// IOPoll polls devices for completions instead of waiting for interrupts.
	IOPoll bool `mapstructure:"iopoll"`
	// Workers is the most blocking system calls in progress for each reactor and namespace.
	Workers int `mapstructure:"workers" default:"32" validate:"min=1,max=1024"`
}

// Metrics says where monitoring finds what there is to know.
type Metrics struct {
	// Listen is the IP address and TCP port at which /metrics is served by HTTP; "" is nowhere.
	Listen string `mapstructure:"listen"`
}

// Listener is one NVMe port.
type Listener struct {
	// Transport is "rdma" or "tcp".
	Transport string `mapstructure:"transport" validate:"required,oneof=rdma tcp"`
	// Address is an IPv4 or IPv6 address, or a wildcard: 0.0.0.0 or ::.
	Address string `mapstructure:"address" validate:"required"`
	// Port is the transport service ID; 0 lets the system choose a free one.
	Port uint16 `mapstructure:"port" default:"4420"`
	// TOS is the type of service of RDMA connections (DSCP times 4) as far as the target decides
	// it; 0 leaves the system's.
	TOS uint8 `mapstructure:"tos" default:"0"`
	// OnUnavailable says what to do if the listener cannot start: "wait" serves the rest and keeps
	// trying, "fail" exits.
	OnUnavailable string `mapstructure:"on_unavailable" default:"wait" validate:"oneof=fail wait"`
}

// Subsystem is one NVM subsystem.
type Subsystem struct {
	NQN string `mapstructure:"nqn" validate:"required"`
	// AllowAnyHost lets every host connect; otherwise only the host NQNs in Hosts may.
	AllowAnyHost bool     `mapstructure:"allow_any_host"`
	Hosts        []string `mapstructure:"hosts" validate:"max=4096"`
	// Serial and Model are the controller's serial and model number. Serial "" is derived from the
	// NQN.
	Serial string `mapstructure:"serial"`
	Model  string `mapstructure:"model" default:"nvmf-target"`
	// CNTLIDMin and CNTLIDMax bound the controller IDs; targets that share a subsystem need
	// disjoint ranges.
	CNTLIDMin uint16 `mapstructure:"cntlid_min" default:"1" validate:"min=1,max=65519"`
	CNTLIDMax uint16 `mapstructure:"cntlid_max" default:"65519" validate:"min=1,max=65519"`
	// MaxIOQueues is how many I/O queues a host may have.
	MaxIOQueues int `mapstructure:"max_io_queues" default:"128" validate:"min=1,max=1024"`
	// MaxTransfer is the most data of one command, a power of two.
	MaxTransfer Size        `mapstructure:"max_transfer" default:"1MiB" validate:"sizemin=64KiB,sizemax=4MiB"`
	Namespaces  []Namespace `mapstructure:"namespaces" validate:"required,max=1024,dive"`
}

// Namespace is one block device.
type Namespace struct {
	NSID    uint32 `mapstructure:"nsid" validate:"required,max=8192"`
	Storage `mapstructure:",squash"`
	// UUID, NGUID and EUI64 identify the namespace; those not given are derived from the
	// subsystem's NQN and the NSID.
	UUID  string `mapstructure:"uuid"`
	NGUID string `mapstructure:"nguid"`
	EUI64 string `mapstructure:"eui64"`
	// ReadOnly refuses writes.
	ReadOnly bool `mapstructure:"read_only"`
	// IOTimeout is how long the storage may take for a command before hosts are told to try again;
	// 0 is for ever. Backends ram and null always answer.
	IOTimeout time.Duration `mapstructure:"io_timeout" default:"20s" validate:"min=0s,max=1h"`
}
