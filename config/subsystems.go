package config

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Subsystem is an NVM subsystem as in the file. The program sets the namespaces of Config.
type Subsystem struct {
	subsystems.Config
	Namespaces []Namespace
}

func (s *Subsystem) value(backends []Backend) lang.Value {
	s.SetDefaults()
	return lang.Mapping{
		lang.NewKey("nqn",
			lang.Unique(nqn(&s.NQN, "the discovery subsystem exists by itself"),
				"Give each subsystem its own NQN."),
			"The name that hosts connect to: `nqn.YYYY-MM.REVERSED.DOMAIN:NAME`. Other forms "+
				"cause a warning, because some hosts do not accept them.").
			Require("Add it.").OrFile(),
		lang.NewKey("allow_any_host", lang.Bool(&s.AllowAnyHost),
			"Every host may connect. Set it when every machine that can reach a listener may "+
				"use the storage."),
		lang.NewKey("hosts", hostList(&s.Hosts),
			"NQNs of the hosts that may connect (`cat /etc/nvme/hostnqn` on the host). Set "+
				"it unless `allow_any_host` is set. An NQN is no proof of identity: any host "+
				"that reaches the port can claim it, unless the host has a `dhchap_key`.").
			Without("none"),
		lang.NewKey("security", security(&s.Security),
			"The security required of allowed hosts: `auth`, authentication with a "+
				"`dhchap_key`; `tls`, TLS (TCP only) with a `tls_key` or a key of secure "+
				"channel concatenation; `auth+tls`, both. To all other hosts, the subsystem "+
				"does not exist. With `none`, hosts with a key authenticate, and hosts without "+
				"one connect without authentication. Set it when an NQN is not enough; "+
				"`allow_any_host` then allows every host with a key."),
		lang.NewKey("duplicate_hosts", lang.Either(&s.RefuseDuplicateHosts, "allow", "refuse"),
			"Whether to `allow` a host with the NQN of a connected host but another host "+
				"identifier, or the other way around, with a warning in the log, or to `refuse` "+
				"it. This happens with cloned machines. Set it to `refuse` when a machine that "+
				"cannot connect is better than two that use each other's disks.").
			Without("allow"),
		lang.NewKey("listeners", lang.List(&s.Listeners, 0, MaxListeners,
			func(l *string) lang.Value {
				return lang.Unique(lang.Text(l), "Delete one of the two.")
			}),
			"The listeners that serve the subsystem, each by its name or as in `10.0.0.1:4420` "+
				"or `tcp eth0:4420`. At other listeners, it does not exist. Set it when "+
				"networks must not see each other's subsystems, or to keep a subsystem on its "+
				"fastest network.").
			Without("all"),
		lang.NewKey("serial", ascii(&s.Serial, subsystems.SerialSize),
			"Serial number. Set it when hosts know the subsystem by another serial number, for "+
				"instance after a migration.").Without("derived from the NQN").OrFile(),
		lang.NewKey("model", ascii(&s.Model, subsystems.ModelSize),
			"Model number. Set it when hosts or their udev rules select storage by it.").OrFile(),
		lang.NewKey("cntlid_min", lang.Int(&s.CNTLIDMin, subsystems.MinCNTLID, int(nvme.CNTLIDMax)),
			"The first controller ID. Set it when several targets serve the same subsystem: "+
				"their ranges must not overlap."),
		lang.NewKey("cntlid_max", lang.Int(&s.CNTLIDMax, subsystems.MinCNTLID, int(nvme.CNTLIDMax)),
			"The last controller ID. Set it with `cntlid_min`."),
		lang.NewKey("max_io_queues", lang.Int(&s.MaxIOQueues, 1, subsystems.MaxIOQueues),
			"The largest number of I/O queues of a host. Set it lower when hosts with many CPUs "+
				"take more connections than the target has memory for."),
		lang.NewKey("max_transfer", lang.Bytes(&s.MaxTransfer, subsystems.MinTransfer,
			subsystems.MaxTransfer, lang.PowerOfTwo),
			"The most data of one command, at most a quarter of `reactors.memory`; hosts split "+
				"larger ones. Set it lower when large commands delay small ones, higher when the "+
				"storage is faster with large ones."),
		limitsKey(&s.Limits, "All hosts together get no more than this; each host that wants "+
			"more gets an equal part."),
		lang.NewKey("namespaces", lang.List(&s.Namespaces, 0, 1024,
			func(n *Namespace) lang.Value { return n.value(backends) }),
			"The disks that hosts see. The list may be empty: hosts can connect, and notice "+
				"namespaces that are added later.").Without("none"),
	}
}

// Namespace is one namespace and its storage. The program opens the storage and sets Device.
type Namespace struct {
	namespaces.Config
	Storage
}

func (n *Namespace) value(backends []Backend) lang.Value {
	n.Timeout, n.ANAGroup = 20*time.Second, 1
	storage := &n.Storage
	return &storageValue{p: &storage, backends: backends, common: []lang.Key{
		lang.NewKey("nsid", lang.Unique(lang.Int(&n.NSID, 1, namespaces.MaxNSID),
			"Give each namespace of a subsystem its own nsid."),
			"Namespace ID, the 1 of `/dev/nvme0n1`.").Require("Add it."),
		lang.NewKey("uuid", id(&n.UUID),
			"UUID of the namespace. Set it when hosts know the namespace by another identifier, "+
				"for instance after a migration.").
			Without("derived from NQN and NSID, if there is no other identifier").OrFile(),
		lang.NewKey("nguid", hexadecimal(n.NGUID[:]),
			"NGUID of the namespace. Set it when hosts know the namespace by one.").
			Without("derived from NQN and NSID, if there is no other identifier").OrFile(),
		lang.NewKey("eui64", hexadecimal(n.EUI64[:]),
			"EUI-64 of the namespace. Set it when hosts know the namespace by one.").
			Without("none").OrFile(),
		lang.NewKey("read_only", lang.Bool(&n.ReadOnly),
			"Writes are refused. Set it when hosts must not write."),
		lang.NewKey("hosts", hostList(&n.Hosts),
			"The NQNs of the hosts of the subsystem that see the namespace. Set it when hosts "+
				"share a subsystem but not their disks.").Without("all"),
		lang.NewKey("io_timeout", lang.Duration(&n.Timeout, 0, time.Hour),
			"How long the storage may take for a command before it is given up and hosts try "+
				"again; the namespace is not ready until the storage answers. `0s` waits for "+
				"ever. It has no effect on `ram` and `\"null\"`, which always answer. Set it "+
				"higher when the storage may be that slow; with less than the 30s of Linux, "+
				"hosts keep their connections."),
		lang.NewKey("ana_group", lang.Int(&n.ANAGroup, 1, ana.MaxGroups),
			"ANA group; `ana_states` of the listeners sets its states. Set it when the "+
				"listeners are not equally good for all namespaces."),
		limitsKey(&n.Limits, "All hosts together get no more than this; each host that wants more "+
			"gets an equal part."),
	}}
}

// slowest is the smallest plausible bandwidth: at it a command of 1 MiB takes 16 s.
const slowest = 64 << 10

// limitsKey is the key of hosts, subsystems and namespaces.
func limitsKey(l *qos.Limits, doc string) lang.Key {
	l.Burst = qos.DefaultBurst
	return lang.NewKey("limits", lang.Mapping{
		lang.NewKey("iops", lang.Int(&l.IOPS, 1, 1_000_000_000),
			"Commands per second that read or change blocks. Set it when small commands take more "+
				"of the storage or the CPUs than is fair.").Without("no limit"),
		lang.NewKey("bandwidth", lang.Doubtful(
			lang.Bytes(&l.Bandwidth, 1, lang.NoLimit, lang.AnySize),
			func(word string) (what, hint string) {
				if l.Bandwidth >= slowest {
					return "", ""
				}
				return fmt.Sprintf("%s is %d bytes per second, less than %v", word, l.Bandwidth,
						lang.Size(slowest)),
					"Commands will take many seconds, and hosts may give up. Write a unit, as in " +
						"100MiB, if that is meant."
			}),
			"Data of reads, writes and Write Zeroes, in bytes per second (`200MiB`). Set it when "+
				"large commands take more of the storage or the network than is fair.").
			Without("no limit"),
		lang.NewKey("burst", lang.Duration(&l.Burst, qos.MinBurst, qos.MaxBurst),
			"The burst that is allowed after a pause: the amount that the limits allow in this "+
				"time. Set it higher when bursts of hosts should not be delayed."),
	}, doc)
}

func (v *validator) subsystem(c *Config, s *Subsystem, path string) {
	switch {
	case s.AllowAnyHost && len(s.Hosts) > 0:
		v.Add(path+".hosts", "allow_any_host is true, so this list would have no effect",
			"Delete one of the two.")
	case !s.AllowAnyHost && len(s.Hosts) == 0 && c.Managed == "" && !v.Bad(path+".hosts") &&
		!v.Bad(path+".allow_any_host"):
		v.Add(path, "no host may connect",
			"List the host NQNs (cat /etc/nvme/hostnqn on the host) in hosts, or set "+
				"allow_any_host: true.")
	}
	if s.CNTLIDMin > s.CNTLIDMax {
		v.Add(path+".cntlid_min",
			fmt.Sprintf("%d is above cntlid_max, %d", s.CNTLIDMin, s.CNTLIDMax),
			"Exchange the two.")
	}
	if c.Reactors.Memory < 4*s.MaxTransfer {
		v.Add(path+".max_transfer", fmt.Sprintf("%v is more than a quarter of reactors.memory, %v",
			lang.Size(s.MaxTransfer), lang.Size(c.Reactors.Memory)),
			"Reduce it, or give the reactors more memory: commands share it.")
	}
	if len(s.Namespaces) == 0 && c.Managed == "" && !v.Bad(path+".namespaces") {
		v.AddWarning(path+".namespaces", "there are none, so hosts that connect find nothing",
			"Add them when there is storage.")
	}
	v.limits(&s.Limits, path)
	for i := range s.Namespaces {
		v.namespace(&s.Namespaces[i], fmt.Sprintf("%s.namespaces[%d]", path, i))
	}
}

func (v *validator) namespace(n *Namespace, path string) {
	v.limits(&n.Limits, path)
	if b := v.backends.find(n.Backend); b != nil && b.AlwaysAnswers {
		if v.Given(path+".io_timeout") && n.Timeout != 0 {
			v.Add(path+".io_timeout", "backend "+n.Backend+
				" always answers, so it would have no effect", "Delete it.")
		}
		n.Timeout = 0
	}
}

func (v *validator) limits(l *qos.Limits, path string) {
	path += ".limits."
	v.need(path+"burst", v.Given(path+"burst"), l.IOPS != 0 || l.Bandwidth != 0, path+"iops",
		path+"bandwidth")
}
