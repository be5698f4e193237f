// Package subsystems has the settings of subsystems and of the hosts that use them: their limits,
// their bounds, and the conditions under which a host may have a controller.
//
// It imports association, discovery, namespaces and qos, and knows no controller. Any goroutine may
// call its functions unless they say otherwise.
package subsystems
