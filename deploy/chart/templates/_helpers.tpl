{{/* The table of services. */}}
{{- define "berth.table" -}}
{{ .Files.Get "services.yaml" }}
{{- end }}

{{/* "true" where the pipeline runs. */}}
{{- define "berth.hasHub" -}}
{{ if ne .Values.role "worker" }}true{{ end }}
{{- end }}

{{/* "true" beside Kueue's MultiKueue, where services ask this cluster's API. */}}
{{- define "berth.hasKueueHub" -}}
{{ if has .Values.role (list "hub" "both") }}true{{ end }}
{{- end }}

{{- define "berth.hasWorker" -}}
{{ if has .Values.role (list "worker" "both") }}true{{ end }}
{{- end }}

{{- define "berth.hasBus" -}}
{{ if and (include "berth.hasHub" .) (eq .Values.bus.mode "bundled") }}true{{ end }}
{{- end }}

{{/* What clears nominations: policy, webhook or none. */}}
{{- define "berth.clearing" -}}
{{- if not (and (include "berth.hasKueueHub" .) (eq .Values.hub.mode "dispatch")) }}none
{{- else if ne .Values.clearing.by "auto" }}{{ .Values.clearing.by }}
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}policy
{{- else }}webhook{{ end }}
{{- end }}

{{- define "berth.clearingName" -}}
berth-clearing.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The webhook's name where its certificate is of our own authority. */}}
{{- define "berth.clearingOwn" -}}
{{ if and (eq (include "berth.clearing" .) "webhook") (include "berth.hasBus" .) (not .Values.bus.issuer.name) }}{{ include "berth.clearingName" . }}{{ end }}
{{- end }}

{{/* The services of the hub's pod, from the table. */}}
{{- define "berth.hubServices" -}}
{{- $found := dict }}
{{- range $name, $service := (include "berth.table" . | fromYaml).hub }}
{{- if and (or (not $service.optional) (has $name $.Values.hub.services))
           (or (not $service.kubernetes) (include "berth.hasKueueHub" $)) }}
{{- $_ := set $found $name $service }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* The services of the agent's pod, from the table. */}}
{{- define "berth.workerServices" -}}
{{- $wanted := .Values.worker.services }}
{{- if eq .Values.worker.telemetry "dcgm" }}{{ $wanted = append $wanted "telemetry" }}{{ end }}
{{- $found := dict }}
{{- range $name, $service := (include "berth.table" . | fromYaml).worker }}
{{- if or (not $service.optional) (has $name $wanted) }}
{{- $_ := set $found $name $service }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* Where services of this cluster reach NATS. */}}
{{- define "berth.busUrl" -}}
{{ if eq .Values.bus.mode "bundled" }}tls://{{ include "berth.busName" . }}:4222{{ else }}{{ .Values.bus.url }}{{ end }}
{{- end }}

{{/* Ports of NATS. */}}
{{- define "berth.busPorts" -}}
{{- range regexFindAll ":[0-9]+" (include "berth.busUrl" .) -1 | uniq }}
- {{ trimPrefix ":" . }}
{{- end }}
{{- end }}

{{- define "berth.busName" -}}
berth-nats.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The Secret with the authority and the servers' certificate. */}}
{{- define "berth.tlsSecret" -}}
{{ if .Values.bus.issuer.name }}berth-bus-tls{{ else }}berth-bus{{ end }}
{{- end }}

{{/* Image of a service: (list root name). */}}
{{- define "berth.image" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}{{ $image := $root.Values.image }}
{{- $image.registry }}/{{ $name }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ with get $image.digests $name }}@{{ . }}{{ end }}
{{- end }}

{{/* Labels of an object: (list component name); name "" = of no pod. */}}
{{- define "berth.labels" -}}
{{- with index . 1 }}app.kubernetes.io/name: {{ . }}
{{ end -}}
app.kubernetes.io/part-of: berthmaster
app.kubernetes.io/component: {{ index . 0 }}
{{- end }}

{{/* What all our pods have in common. */}}
{{- define "berth.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # their variables begin like settings of ours
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch # else seeds of mode 0600 would become 0660 at each start
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A container's rights and its CPU and memory: (list root name cpu memory limit). */}}
{{- define "berth.limits" -}}
{{- $own := dict "requests" (dict "cpu" (index . 2) "memory" (index . 3)) "limits" (dict "memory" (index . 4)) -}}
{{- $given := get (index . 0).Values.resources (index . 1) | default dict -}}
resources:
  {{- mergeOverwrite $own $given | toYaml | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
imagePullPolicy: {{ (index . 0).Values.image.pullPolicy }}
{{- end }}

{{/* Health and metrics of a container: (list name port). */}}
{{- define "berth.probes" -}}
ports:
  - {name: {{ index . 0 }}, containerPort: {{ index . 1 }}}
livenessProbe:
  httpGet: {path: /healthz, port: {{ index . 0 }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ index . 0 }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* A user of the bus in the hub's cluster: (list root user). */}}
{{- define "berth.busVariables" -}}
- {name: BERTH_NATS_URL, value: {{ include "berth.busUrl" (index . 0) | quote }}}
- {name: BERTH_NATS_CA_FILE, value: /etc/berth/ca.crt}
- {name: BERTH_NATS_CREDS_FILE, value: /etc/berth/user.creds}
- {name: BERTH_INBOX_PREFIX, value: _INBOX.{{ index . 1 }}}
- {name: HOME, value: /tmp}
{{- end }}

{{/* Its key, which no other container mounts. */}}
{{- define "berth.keyMounts" -}}
- {name: keys, mountPath: /etc/berth/user.creds, subPath: {{ . }}.creds, readOnly: true}
- {name: keys, mountPath: /etc/berth/ca.crt, subPath: ca.crt, readOnly: true}
{{- end }}

{{/* Token, authority and namespace, as Kubernetes mounts them where it mounts them everywhere. */}}
{{- define "berth.tokenVolume" -}}
- name: api
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{- define "berth.tokenMount" -}}
- {name: api, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* What everybody's NetworkPolicy lets out: names. */}}
{{- define "berth.egressNames" -}}
- to:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: kube-system}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}

{{/* API servers: only you know their addresses, and ports other than these. */}}
{{- define "berth.egressApi" -}}
- ports:
    - {port: 443}
    - {port: 6443}
{{- end }}

{{/* Metrics and health, for namespaces labelled metrics=enabled. The kubelet's probes need no rule. */}}
{{- define "berth.ingressMetrics" -}}
- from:
    - namespaceSelector:
        matchLabels: {metrics: enabled}
  ports:
    {{- range . }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}

{{/* Variables of the values, as a ConfigMap: (list name namespace component settings). */}}
{{- define "berth.settings" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ index . 0 }}
  namespace: {{ index . 1 }}
  labels:
    {{- include "berth.labels" (list (index . 2) "") | nindent 4 }}
data:
  {{- range $name, $value := index . 3 }}
  {{ $name }}: {{ $value | quote }}
  {{- end }}
{{- end }}

{{/* Keeps pods when nodes are drained: (list name namespace component replicas). */}}
{{- define "berth.budget" -}}
{{- if gt (int (index . 3)) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 0 }}
  namespace: {{ index . 1 }}
  labels:
    {{- include "berth.labels" (list (index . 2) "") | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app.kubernetes.io/name: {{ index . 0 }}}
{{- end }}
{{- end }}

{{/* An account of its own: (list name namespace component). */}}
{{- define "berth.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ index . 0 }}
  namespace: {{ index . 1 }}
  labels:
    {{- include "berth.labels" (list (index . 2) "") | nindent 4 }}
automountServiceAccountToken: false
{{- end }}

{{/* A ClusterRole for one account everywhere: (list root role account namespace component). */}}
{{- define "berth.bindEverywhere" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "berth.labels" (list (index . 4) "") | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ index . 1 }}}
subjects:
  - {kind: ServiceAccount, name: {{ index . 2 }}, namespace: {{ index . 3 }}}
{{- end }}

{{/* A role for one account in one namespace: (list role account namespace component where kind). */}}
{{- define "berth.bindIn" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ index . 0 }}
  namespace: {{ index . 4 }}
  labels:
    {{- include "berth.labels" (list (index . 3) "") | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ index . 5 }}, name: {{ index . 0 }}}
subjects:
  - {kind: ServiceAccount, name: {{ index . 1 }}, namespace: {{ index . 2 }}}
{{- end }}

{{/* Nodes with NVIDIA's GPUs, by whoever labels them: GPU feature discovery, node feature discovery, GKE, EKS, AKS. */}}
{{- define "berth.gpuNodes" -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{key: nvidia.com/gpu.present, operator: In, values: ["true"]}]
        - matchExpressions: [{key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}]
        - matchExpressions: [{key: cloud.google.com/gke-accelerator, operator: Exists}]
        - matchExpressions: [{key: k8s.amazonaws.com/accelerator, operator: Exists}]
        - matchExpressions: [{key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia]}]
{{- end }}
