{{/*
Names. The chart has four programs: tegra-device-plugin, tegra-gpu-agent, tegra-dra-driver and tegra-throttle-taint.
Helpers that name objects take a dict of `root`, which is the chart's context, and `program`.
*/}}

{{/* The program that serves the GPU. */}}
{{- define "tegra-device-plugin.main" -}}
{{ eq .Values.api "dra" | ternary "tegra-dra-driver" "tegra-device-plugin" }}
{{- end }}

{{/* The programs that this release runs, as JSON. */}}
{{- define "tegra-device-plugin.programs" -}}
{{- $agent := .Values.agent.enabled | ternary "tegra-gpu-agent" "" -}}
{{- $taint := .Values.throttleTaint.enabled | ternary "tegra-throttle-taint" "" -}}
{{ list (include "tegra-device-plugin.main" .) $agent $taint | compact | toJson }}
{{- end }}

{{/* A program's name after another base: `-agent` and the like are added, and 63 characters are the limit. */}}
{{- define "tegra-device-plugin.derived" -}}
{{- $suffixes := dict "tegra-gpu-agent" "-agent" "tegra-dra-driver" "-dra-driver" "tegra-throttle-taint" "-throttle-taint" -}}
{{- $suffix := get $suffixes .program -}}
{{ .base | trunc (min 52 (sub 63 (len $suffix)) | int) | trimSuffix "-" }}{{ $suffix }}
{{- end }}

{{/* The label app.kubernetes.io/name: the program's name, or one after nameOverride. */}}
{{- define "tegra-device-plugin.name" -}}
{{- if .root.Values.nameOverride -}}
{{ include "tegra-device-plugin.derived" (dict "program" .program "base" .root.Values.nameOverride) }}
{{- else -}}
{{ .program }}
{{- end }}
{{- end }}

{{/*
The name of objects. Helm's usual one, with the release's name before the chart's. A release tegra-device-plugin has the
names of the plain manifests. Those of a `configuration` end with its name.
*/}}
{{- define "tegra-device-plugin.fullname" -}}
{{- $name := .root.Values.nameOverride | default "tegra-device-plugin" -}}
{{- $release := .root.Release.Name -}}
{{- $usual := contains $name $release | ternary $release (printf "%s-%s" $release $name) -}}
{{- $base := .root.Values.fullnameOverride | default $usual -}}
{{- if eq $base "tegra-device-plugin" -}}
{{ .program }}
{{- else -}}
{{ include "tegra-device-plugin.derived" (dict "program" .program "base" $base) }}
{{- end }}
{{- with .configuration -}}
-{{ . }}
{{- end }}
{{- end }}

{{/* The namespace of objects. */}}
{{- define "tegra-device-plugin.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* The labels by which pods are selected. They can never change: a DaemonSet's selector is immutable. */}}
{{- define "tegra-device-plugin.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tegra-device-plugin.name" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .configuration }}
jetson-k3s.github.io/configuration: {{ . | quote }}
{{- end }}
{{- end }}

{{/*
The labels of a DaemonSet's selector, which is immutable. If 0.1.0 installed the DaemonSet, it selects by the first label
alone, and has to do so for ever. Its pods get both labels.
*/}}
{{- define "tegra-device-plugin.selected" -}}
{{- $labels := include "tegra-device-plugin.selectorLabels" . | fromYaml -}}
{{- $namespace := include "tegra-device-plugin.namespace" .root -}}
{{- $found := lookup "apps/v1" "DaemonSet" $namespace (include "tegra-device-plugin.fullname" .) -}}
{{- $before := dig "spec" "selector" "matchLabels" dict $found -}}
{{- $first := pick $labels "app.kubernetes.io/name" -}}
{{ eq ($before | toJson) ($first | toJson) | ternary $first $labels | toYaml }}
{{- end }}

{{/* The labels of every object, with `labels` besides. */}}
{{- define "tegra-device-plugin.labels" -}}
{{- $own := include "tegra-device-plugin.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_") -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63) -}}
{{ merge $own (.labels | default dict) .root.Values.commonLabels | toYaml }}
{{- end }}

{{/*
The metadata of an object of a program. `name` is for one that has another name than the program, `cluster` for one
without a namespace.
*/}}
{{- define "tegra-device-plugin.metadata" -}}
name: {{ .name | default (include "tegra-device-plugin.fullname" .) }}
{{- if not .cluster }}
namespace: {{ include "tegra-device-plugin.namespace" .root }}
{{- end }}
labels:
  {{- include "tegra-device-plugin.labels" . | nindent 2 }}
{{- with .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The image's name. With a digest, the tag is not used. */}}
{{- define "tegra-device-plugin.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Mounts a directory of the host into the container of a pod. Renders nothing. */}}
{{- define "tegra-device-plugin.addDirectory" }}
{{- $container := first .pod.containers }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts .mount) }}
{{- $volume := dict "name" .mount.name "hostPath" (dict "path" .path "type" "DirectoryOrCreate") }}
{{- $_ := set .pod "volumes" (append .pod.volumes $volume) }}
{{- end }}

{{/* Removes a volume of a pod and its mount. Renders nothing. */}}
{{- define "tegra-device-plugin.removeVolume" }}
{{- $name := .name }}
{{- range $list, $owner := dict "volumes" .pod "volumeMounts" (first .pod.containers) }}
{{- $kept := list }}
{{- range get $owner $list }}
{{- if ne .name $name }}
{{- $kept = append $kept . }}
{{- end }}
{{- end }}
{{- $_ := set $owner $list $kept }}
{{- end }}
{{- end }}

{{/*
Mounts the host's paths that the settings need and others do not, read-only: udev's properties for `udev`, the names of
listening sockets for the preset `argus`, the power mode for `boardMetrics`. Renders nothing.
*/}}
{{- define "tegra-device-plugin.addSettingsPaths" }}
{{- $pod := .pod }}
{{- $found := dict }}
{{- if ((.config.flags | default dict).plugin | default dict).boardMetrics }}
{{- $_ := set $found "nvpmodel" (dict "path" "/var/lib/nvpmodel" "type" "DirectoryOrCreate") }}
{{- end }}
{{- range .config.devices }}
{{- if eq (toString .preset) "argus" }}
{{- $_ := set $found "unix-sockets" (dict "path" "/proc/1/net/unix" "type" "File") }}
{{- end }}
{{- range .groups }}
{{- range .paths }}
{{- if .udev }}
{{- $_ := set $found "udev" (dict "path" "/run/udev/data" "type" "Directory") }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $host := $found }}
{{- $container := first $pod.containers }}
{{- $mount := dict "name" $name "mountPath" (printf "/host%s" $host.path) "readOnly" true }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" $name "hostPath" $host)) }}
{{- end }}
{{- end }}

{{/* Gives the node agent its mode and policy, with the rights that they need and no more. Renders nothing. */}}
{{- define "tegra-device-plugin.chooseRights" }}
{{- $pod := .pod }}
{{- $container := .container }}
{{- $context := $container.securityContext }}
{{- if ne .agent.mode "report" }}
{{- $_ := set $container "args" (append $container.args (printf "--mode=%s" .agent.mode)) }}
{{- end }}
{{- if ne .agent.qosPolicy "best-effort" }}
{{- $_ := set $container "args" (append $container.args (printf "--qos-policy=%s" .agent.qosPolicy)) }}
{{- end }}
{{- with .agent.unusedAfter }}
{{- $_ := set $container "args" (append $container.args (printf "--unused-after=%s" .)) }}
{{- end }}
{{- if .agent.hostPID }}
{{- /* On a Thor processes are found by the host's numbers. */}}
{{- $_ := set $pod "hostPID" true }}
{{- end }}
{{- range $rights := list (index .rights .agent.mode) (index .rights .agent.qosPolicy) }}
{{- with $rights }}
{{- if .hostPID }}
{{- $_ := set $pod "hostPID" true }}
{{- end }}
{{- range $name, $path := .hostPaths }}
{{- $mount := dict "name" $name "mountPath" (printf "/host%s" $path) "readOnly" true }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) }}
{{- $host := dict "path" $path "type" "Directory" }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" $name "hostPath" $host)) }}
{{- end }}
{{- range $key, $value := .securityContext }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $context $key }}
{{- else }}
{{- $_ := set $context $key $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The objects of the cluster that a program needs, from the plain manifest `file`. */}}
{{- define "tegra-device-plugin.cluster" }}
{{- $root := .root }}
{{- $program := .program }}
{{- $name := include "tegra-device-plugin.fullname" . }}
{{- $namespace := include "tegra-device-plugin.namespace" .root }}
{{- range $text := regexSplit "(?m)^---$" ($root.Files.Get .file) -1 | compact }}
{{- $object := fromYaml $text }}
{{- $kind := $object.kind }}
{{- /* Claims name a class, so a class has the same name in every release. */}}
{{- $own := eq $kind "DeviceClass" | ternary $object.metadata.name "" }}
{{- $metadata := dict "root" $root "program" $program "cluster" (ne $kind "ServiceAccount") "name" $own }}
{{- $_ := set $object "metadata" (include "tegra-device-plugin.metadata" $metadata | fromYaml) }}
{{- if eq $kind "ClusterRoleBinding" }}
{{- $_ := set $object.roleRef "name" $name }}
{{- range $object.subjects }}
{{- $_ := set . "name" $name }}
{{- $_ := set . "namespace" $namespace }}
{{- end }}
{{- else if eq $kind "ValidatingAdmissionPolicy" }}
{{- $user := printf "request.userInfo.username == 'system:serviceaccount:%s:%s'" $namespace $name }}
{{- $_ := set (first $object.spec.matchConditions) "expression" $user }}
{{- else if eq $kind "ValidatingAdmissionPolicyBinding" }}
{{- $_ := set $object.spec "policyName" $name }}
{{- else if and (eq $kind "DeviceClass") (eq $own "gpu.jetson-k3s.github.io") }}
{{- with $root.Values.dra.extendedResourceName }}
{{- $_ := set $object.spec "extendedResourceName" . }}
{{- end }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
