package sys

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// NoNode is the node of memory and devices that are not local to any NUMA node.
const NoNode = -1

// NodeOfCPU returns the NUMA node of a processor; NoNode: unknown, or the machine has one.
func NodeOfCPU(cpu int) int { return nodeOfCPU("/sys/devices/system", cpu) }

func nodeOfCPU(root string, cpu int) int {
	online := Attribute(filepath.Join(root, "node/online")) // "0-1,4"
	if cpu < 0 || !strings.ContainsAny(online, "-,") {
		return NoNode
	}
	links, err := filepath.Glob(filepath.Join(root, fmt.Sprintf("cpu/cpu%d/node[0-9]*", cpu)))
	if err != nil || len(links) != 1 {
		return NoNode
	}
	return parseNode(strings.TrimPrefix(filepath.Base(links[0]), "node"))
}

// NodeOfDevice returns the NUMA node of a device of a class in /sys/class, NoNode if it is unknown.
func NodeOfDevice(class, name string) int { return nodeOfDevice("/sys/class", class, name) }

func nodeOfDevice(root, class, name string) int {
	return parseNode(Attribute(filepath.Join(root, class, name, "device/numa_node")))
}

func parseNode(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return NoNode
	}
	return n
}
