// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Hook makes what a container has beside what the runtime makes, such as a pid file. Its methods are called in the
// order of [Config.Hooks], Removed in the reverse order. An implementation embeds [NoHook] for those that it does not
// need.
type Hook interface {
	// Prepare is called before the runtime creates the container. It may change c.Spec, c.Rootfs and c.Files.
	Prepare(ctx context.Context, c *Config) error
	// Created is called when init exists, before anybody is told of it. Init does not run its program yet, except in a
	// container that is restored from a checkpoint: there Start calls it.
	Created(ctx context.Context, c RuntimeContainer, init Handle) error
	// Removed undoes Prepare and Created. It is called after the container is destroyed, and when its creation failed,
	// even if Prepare or Created failed or were not called. It is called again after a failure.
	Removed() error
	// BeforeUpdate is called before the runtime writes r to the cgroup.
	BeforeUpdate(r *specs.LinuxResources)
	// AfterUpdate is called with the runtime's result.
	AfterUpdate(err error)
	// Exited is called before init's exit is told. It must not block for long.
	Exited(exit Exit)
	// BeforeDestroy is called before the runtime removes the cgroup.
	BeforeDestroy()
}

// NoHook is a [Hook] that does nothing.
type NoHook struct{}

// Prepare implements [Hook].
func (NoHook) Prepare(context.Context, *Config) error { return nil }

// Created implements [Hook].
func (NoHook) Created(context.Context, RuntimeContainer, Handle) error { return nil }

// Removed implements [Hook].
func (NoHook) Removed() error { return nil }

// BeforeUpdate implements [Hook].
func (NoHook) BeforeUpdate(*specs.LinuxResources) {}

// AfterUpdate implements [Hook].
func (NoHook) AfterUpdate(error) {}

// Exited implements [Hook].
func (NoHook) Exited(Exit) {}

// BeforeDestroy implements [Hook].
func (NoHook) BeforeDestroy() {}

// prepare runs the hooks before the runtime creates the container.
func (c *Container) prepare(ctx context.Context) error {
	for _, h := range c.config.Hooks {
		if err := h.Prepare(ctx, &c.config); err != nil {
			return err
		}
	}
	return nil
}

// initCreated runs the hooks for init, of which nobody knows yet. When it fails, init is dead.
func (c *Container) initCreated(ctx context.Context, init Handle) (err error) {
	defer func() {
		if err != nil {
			_ = init.Signal(syscall.SIGKILL) // it may be dead already
			init.Wait()
		}
	}()
	for _, h := range c.config.Hooks {
		if err := h.Created(ctx, c.runtime, init); err != nil {
			return err
		}
	}
	return c.watchOOM() // before init can run its program, so that no kill is missed
}

func (c *Container) update(r *specs.LinuxResources) error {
	for _, h := range c.config.Hooks {
		h.BeforeUpdate(r)
	}
	err := c.runtime.Update(r)
	for _, h := range c.config.Hooks {
		h.AfterUpdate(err)
	}
	return err
}

// beforeDestroy tells the hooks that the runtime is about to remove the cgroup.
func (c *Container) beforeDestroy() {
	for _, h := range c.config.Hooks {
		h.BeforeDestroy()
	}
}

// removeHooks undoes the hooks. One that fails does not keep the others from being undone.
func (c *Container) removeHooks() error {
	var errs []error
	for _, h := range slices.Backward(c.config.Hooks) {
		errs = append(errs, h.Removed())
	}
	return errors.Join(errs...)
}
