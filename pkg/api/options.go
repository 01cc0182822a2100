// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api

// RuncOptions is containerd.runc.v1.Options.
type RuncOptions struct {
	NoPivotRoot   bool   `protobuf:"varint,1,opt,name=no_pivot_root,proto3"`
	NoNewKeyring  bool   `protobuf:"varint,2,opt,name=no_new_keyring,proto3"`
	ShimCgroup    string `protobuf:"bytes,3,opt,name=shim_cgroup,proto3"`
	IOUid         uint32 `protobuf:"varint,4,opt,name=io_uid,proto3"`
	IOGid         uint32 `protobuf:"varint,5,opt,name=io_gid,proto3"`
	BinaryName    string `protobuf:"bytes,6,opt,name=binary_name,proto3"`
	Root          string `protobuf:"bytes,7,opt,name=root,proto3"`
	SystemdCgroup bool   `protobuf:"varint,9,opt,name=systemd_cgroup,proto3"`
	CriuImagePath string `protobuf:"bytes,10,opt,name=criu_image_path,proto3"`
	CriuWorkPath  string `protobuf:"bytes,11,opt,name=criu_work_path,proto3"`
}

// CheckpointOptions is containerd.runc.v1.CheckpointOptions.
type CheckpointOptions struct {
	Exit                bool     `protobuf:"varint,1,opt,name=exit,proto3"`
	OpenTCP             bool     `protobuf:"varint,2,opt,name=open_tcp,proto3"`
	ExternalUnixSockets bool     `protobuf:"varint,3,opt,name=external_unix_sockets,proto3"`
	Terminal            bool     `protobuf:"varint,4,opt,name=terminal,proto3"`
	FileLocks           bool     `protobuf:"varint,5,opt,name=file_locks,proto3"`
	EmptyNamespaces     []string `protobuf:"bytes,6,rep,name=empty_namespaces,proto3"`
	CgroupsMode         string   `protobuf:"bytes,7,opt,name=cgroups_mode,proto3"`
	ImagePath           string   `protobuf:"bytes,8,opt,name=image_path,proto3"`
	WorkPath            string   `protobuf:"bytes,9,opt,name=work_path,proto3"`
	ParentPath          string   `protobuf:"bytes,10,opt,name=parent_path,proto3"`
}

// ProcessDetails is containerd.runc.v1.ProcessDetails.
type ProcessDetails struct {
	ExecID string `protobuf:"bytes,1,opt,name=exec_id,proto3"`
}

// RuntimeOptions is runtimeoptions.v1.Options.
type RuntimeOptions struct {
	TypeURL    string `protobuf:"bytes,1,opt,name=type_url,proto3"`
	ConfigPath string `protobuf:"bytes,2,opt,name=config_path,proto3"`
	ConfigBody []byte `protobuf:"bytes,3,opt,name=config_body,proto3"`
}
