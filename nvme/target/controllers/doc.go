// Package controllers has the state of controllers that admin commands show and change: Identify
// data structures, log pages, features and asynchronous events. They are rows of tables: adding one
// takes a row and a function. The package also has the list of the controllers of a subsystem.
//
// It knows neither commands nor queues: it checks a command before its data moves, and returns an
// admin.Reply afterwards. Functions that need a queue are Hooks. Everything runs on the reactor of
// the admin queue unless it says otherwise, and does not block.
//
// It imports the other packages below nvme/target for the parts of a controller.
package controllers
