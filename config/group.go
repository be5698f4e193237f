package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Group makes this target one of the gateways that serve the images of ANA groups in turn.
type Group struct {
	// Name is the name of this gateway; "": the target is not a gateway.
	Name string
	// Pool is the pool with the state of the groups, in the cluster of Conf.
	Pool, Conf, User, Keyring string
	Lease                     time.Duration
	ANAGroups, Prefers        []uint32
	// BalanceAfter is the time after which a group moves to a gateway that serves fewer; 0: never.
	BalanceAfter time.Duration
	// SharesConfiguration: subsystems and hosts come from the pool.
	SharesConfiguration bool
	// Key returns the secret with which shared secrets are encrypted; nil: there is none.
	Key func() string
	// CNTLIDMin and CNTLIDMax are the controller IDs of these subsystems here.
	CNTLIDMin, CNTLIDMax uint16
}

func (g *Group) keys() []lang.Key {
	g.Conf, g.User, g.Lease = "/etc/ceph/ceph.conf", "admin", 5*time.Second
	g.BalanceAfter = time.Minute
	groups := func(p *[]uint32) lang.Value {
		return lang.Sequence(p, 0, ana.MaxGroups, func(group *uint32) lang.Value {
			return lang.Unique(lang.Int(group, 1, ana.MaxGroups), "Delete one of the two.")
		})
	}
	return []lang.Key{
		lang.NewKey("name", gatewayName(&g.Name), "Name of this gateway. Set it to a different "+
			"name at each gateway.").
			Without("required"),
		lang.NewKey("pool", lang.Text(&g.Pool), "The pool with the state of the groups. Set it "+
			"to the same pool at all gateways.").Without("required"),
		lang.NewKey("conf", lang.Path(&g.Conf), "Path of the cluster's ceph.conf. Set it when the "+
			"machine uses several clusters."),
		lang.NewKey("user", lang.Text(&g.User), "Name of the client, without `client.`. Set it "+
			"to a client with the profile `rbd` for this pool and the pools of the images."),
		lang.NewKey("keyring", lang.Path(&g.Keyring), "Path of the file with the client's key. "+
			"Set it when ceph.conf does not name it.").Without("the one of ceph.conf"),
		lang.NewKey("lease", lang.Duration(&g.Lease, time.Second, time.Minute),
			"Time after which a gateway that does not renew its lease loses a group; another one "+
				"takes over about two seconds later. Set it higher when the cluster may stall for "+
				"longer."),
		lang.NewKey("ana_groups", groups(&g.ANAGroups), "ANA groups with images that one "+
			"gateway at a time serves. Set it to the same groups at all gateways.").
			Without("required"),
		lang.NewKey("prefers", groups(&g.Prefers), "The groups that this gateway takes first. Set "+
			"it to share the load.").Without("none"),
		lang.NewKey("balance_after", lang.Duration(&g.BalanceAfter, 0, time.Hour),
			"Time for which gateways must have been steady before a group moves from one of "+
				"them to another that serves at least two groups fewer. Set it to `0s` to move "+
				"groups only by hand."),
		lang.NewKey("shares_configuration", lang.Bool(&g.SharesConfiguration), "Subsystems and "+
			"hosts are kept in the pool, and a change at one gateway applies to all. Set it at "+
			"all gateways, with `managed`, which keeps the version in force."),
		lang.NewKey("key", openToken(&g.Key),
			"Secret that encrypts the keys of hosts in shared configurations in the pool. Set "+
				"it to the same secret at all gateways, made by `openssl rand -hex 32`, to keep "+
				"these keys in the pool.").
			Without("none: keys are files of each gateway").OrSecretFile(),
		lang.NewKey("cntlid_min", lang.Int(&g.CNTLIDMin, subsystems.MinCNTLID, int(nvme.CNTLIDMax)),
			"Lowest controller ID of the shared subsystems at this gateway. Set it at all "+
				"gateways, to a range that no other gateway has, if the 1,023 IDs of the default "+
				"are too few.").Without("one of 64 ranges, which the name keeps"),
		lang.NewKey("cntlid_max", lang.Int(&g.CNTLIDMax, subsystems.MinCNTLID, int(nvme.CNTLIDMax)),
			"Highest controller ID of the shared subsystems at this gateway. "+
				"Set it with `cntlid_min`.").Without("as `cntlid_min`"),
	}
}

// maxGateway is the maximum length of the name of a gateway in bytes, as that of a Linux host.
const maxGateway = 64

// gatewayName is the name of a gateway. It is not a number, since commands take a group or a name.
func gatewayName(p *string) lang.Value {
	doc := fmt.Sprintf("up to %d characters, and not a number", maxGateway)
	rules := lang.Schema{"pattern": "[^0-9]", "maxLength": maxGateway}
	return lang.Checked(p, doc, rules, func(s string) (what, hint string) {
		switch _, err := strconv.ParseUint(s, 10, 64); {
		case len(s) > maxGateway:
			return fmt.Sprintf("has %d bytes, more than %d", len(s), maxGateway), "Shorten it."
		case !errors.Is(err, strconv.ErrSyntax):
			return s + " is a number, as those of groups are", "Begin it with a letter."
		}
		return "", ""
	})
}

// group checks the settings of gateways.
func (v *validator) group(c *Config) {
	g := &c.Group
	if !v.Given("group") {
		return
	}
	need := func(key string, given bool) {
		if !given && !v.Bad(key) {
			v.Add(key, "is missing", "Set it, or delete the section group.")
		}
	}
	need("group.name", g.Name != "")
	need("group.pool", g.Pool != "")
	need("group.ana_groups", len(g.ANAGroups) > 0)
	if g.SharesConfiguration {
		need("managed", c.Managed != "")
		need("group.cntlid_min", g.CNTLIDMin != 0 || g.CNTLIDMax == 0)
		need("group.cntlid_max", g.CNTLIDMax != 0 || g.CNTLIDMin == 0)
		if g.CNTLIDMax != 0 && g.CNTLIDMax < g.CNTLIDMin {
			v.Add("group.cntlid_max", "is below group.cntlid_min", "Swap them.")
		}
		for _, list := range []string{"hosts", "subsystems"} {
			if v.Overridden(list) {
				v.Add(list, "replaces the ones that gateways share", "Unset the variable.")
			}
		}
	}
	v.need("group.cntlid_min", g.CNTLIDMin != 0, g.SharesConfiguration,
		"group.shares_configuration")
	v.need("group.cntlid_max", g.CNTLIDMax != 0, g.SharesConfiguration,
		"group.shares_configuration")
	v.need("group.key", g.Key != nil, g.SharesConfiguration, "group.shares_configuration")
	if v.Faulty("group.ana_groups") {
		return
	}
	for i, group := range g.Prefers {
		if !slices.Contains(g.ANAGroups, group) {
			v.Add(fmt.Sprintf("group.prefers[%d]", i), "is not one of group.ana_groups",
				"Add it there, or delete it here.")
		}
	}
	for i := range c.Subsystems {
		for j := range c.Subsystems[i].Namespaces {
			n := &c.Subsystems[i].Namespaces[j]
			path := fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j)
			switch in, rbd := slices.Contains(g.ANAGroups, n.ANAGroup), n.Backend == "rbd"; {
			case v.Bad(path), n.Backend == "":
			case in && !rbd:
				v.Add(path, fmt.Sprintf("backend %s cannot be shared with other gateways, as "+
					"ANA group %d is", n.Backend, n.ANAGroup), "Give it another ana_group.")
			case in && n.Timeout == 0:
				v.Add(path+".io_timeout", "the group would stay here for as long as Ceph does not "+
					"answer", "Give it more than 0s.")
			case !in && rbd && !n.ReadOnly:
				v.Add(path, fmt.Sprintf("several gateways could write to the image, since ANA "+
					"group %d is not one of group.ana_groups", n.ANAGroup), "Add it there, give "+
					"the image another ana_group, or make it read_only.")
			}
		}
	}
}
