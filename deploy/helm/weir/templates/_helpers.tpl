{{- /* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "weir.name" -}}weir-{{ .Values.cluster }}{{- end }}

{{- define "weir.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Of what is no namespace's. Neither a cluster's name nor a namespace's has a dot, so that no two releases have one. */}}
{{- define "weir.clusterWide" -}}{{ include "weir.name" . }}.{{ .Release.Namespace }}{{- end }}

{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ include "weir.name" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Whether a policy or a webhook gives pods their sidecar: "policy", "webhook" or "none". */}}
{{- define "weir.injection" -}}
{{- if ne .Values.injection "auto" -}}{{ .Values.injection }}
{{- else if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version -}}policy
{{- else -}}webhook{{- end -}}
{{- end }}

{{/* Which pods: by their labels, and without those that are to have none. Any value but "true" keeps the sidecar away. */}}
{{- define "weir.selector" -}}
matchLabels: {{- toYaml .Values.podSelector | nindent 2 }}
matchExpressions:
  - {key: weir/inject, operator: NotIn, values: ["false"]}
{{- end }}

{{/* Of which namespace. At any other level of Pod Security, also one that the API server has where a namespace names none, a pod with NET_ADMIN would not be created: it gets none. */}}
{{- define "weir.namespace" -}}
matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace }}, pod-security.kubernetes.io/enforce: privileged}
matchExpressions:
  - {key: weir/inject, operator: NotIn, values: ["false"]}
{{- end }}

{{/* CEL, for the policy and for the webhook: which of these pods. A pod of the node's network would have the node captured; one that has a name twice would not be created. */}}
{{- define "weir.conditions" -}}
- name: has-a-name
  expression: has(object.metadata.name) && object.metadata.name != ''
- name: is-not-mislabelled
  expression: "!has(object.metadata.labels) || !('weir/inject' in object.metadata.labels) || object.metadata.labels['weir/inject'] == 'true'"
- name: has-no-sidecar-yet
  expression: >-
    !(dyn(object.spec.containers) + dyn(object.spec.?initContainers.orValue([])) + dyn(object.spec.?volumes.orValue([])))
    .exists(named, named.name.matches('^weir(-|$)'))
- name: has-a-network-of-its-own
  expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"
{{- if .Values.onlyPods }}
- name: is-one-of-the-first
  expression: "object.metadata.name in {{ toJson .Values.onlyPods | replace "\"" "'" }}"
{{- end }}
{{- end }}

{{/*
What a pod gets. {pod} stands for its name. Everything that is mounted may be missing: then the sidecar waits beside the path.
Root in the container, for a container's other users hold no capability; of root's rights it has NET_ADMIN alone.
*/}}
{{- define "weir.sidecar" -}}
{{- $tls := .Values.listener.tls -}}
{{- $limits := .Values.resources.limits | default dict -}}
{{- range $name, $asked := .Values.resources.requests -}}
  {{- if and (hasKey $limits $name) (gt (include "weir.quantity" (toString $asked) | float64) (include "weir.quantity" (get $limits $name | toString) | float64)) -}}
    {{- fail (printf "resources.requests.%s is above resources.limits.%s: Kubernetes would refuse the brokers' pods" $name $name) -}}
  {{- end -}}
{{- end -}}
{{- $quotas := dig "items" list (lookup "v1" "ResourceQuota" .Release.Namespace "") -}}
{{- range ternary list $quotas (not (empty (dig "items" list (lookup "v1" "LimitRange" .Release.Namespace "")))) -}}
  {{- $quota := .metadata.name -}}
  {{- $of_all := not (or (hasKey .spec "scopes") (hasKey .spec "scopeSelector")) -}}
  {{- range $asked, $_ := ternary (.spec.hard | default dict) dict $of_all -}}
    {{- $name := regexReplaceAll "^(limits|requests)\\." $asked "" -}}
    {{- $given := hasPrefix "limits." $asked | ternary $limits (merge (dict) ($.Values.resources.requests | default dict) $limits) -}}
    {{- if and (has $name (list "cpu" "memory" "ephemeral-storage")) (not (hasKey $given $name)) -}}
      {{- fail (printf "resources lack what the ResourceQuota %s asks of each container, %s: the brokers' pods would be refused" $quota $asked) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
annotations: {weir/status: injected {{ include "weir.image" . }}}
imagePullSecrets: {{- toYaml .Values.image.pullSecrets | nindent 2 }}
container:
  name: weir
  image: {{ include "weir.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [run, --wait, --config, /etc/weir/weir.toml]
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - {name: WEIR_TOKEN_FILE, value: /etc/weir-tokens/write} # for commands in the container
  ports:
    - {name: weir-admin, containerPort: 9690}
  # No startupProbe: the broker would wait for it. A hung one is killed after 8 s: it would not heed SIGTERM.
  livenessProbe:
    httpGet: {path: /healthz, port: 9690}
    initialDelaySeconds: 30
    periodSeconds: 2
    timeoutSeconds: 2
    failureThreshold: 3
    terminationGracePeriodSeconds: 1
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL], add: [NET_ADMIN]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    - {name: weir, mountPath: /etc/weir, readOnly: true}
    - {name: weir-tokens, mountPath: /etc/weir-tokens, readOnly: true}
    {{- if $tls.secretName }}
    - {name: weir-keys, mountPath: /etc/weir-keys, readOnly: true}
    - {name: weir-ca, mountPath: /etc/weir-ca, readOnly: true}
    {{- end }}
    {{- if .Values.clientSecretName }}
    - {name: weir-client, mountPath: /etc/weir-client, readOnly: true}
    {{- end }}
    # In the place of the broker's token for the API server, which the sidecar has no use for.
    - {name: weir-no-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
volumes:
  - name: weir
    configMap: {name: {{ include "weir.name" . }}, optional: true}
  - name: weir-tokens
    secret: {secretName: {{ .Values.tokensSecretName }}, optional: true, defaultMode: 256}
  {{- if $tls.secretName }}
  - name: weir-keys
    secret:
      secretName: {{ $tls.secretName | quote }}
      optional: true
      defaultMode: 256
      items:
        - {key: {{ $tls.certificate | quote }}, path: broker.crt}
        - {key: {{ $tls.key | quote }}, path: broker.key}
  - name: weir-ca
    secret: {secretName: {{ required "listener.tls.caSecretName is missing: the Secret with the brokers' authority" $tls.caSecretName }}, optional: true}
  {{- end }}
  {{- if .Values.clientSecretName }}
  - name: weir-client
    secret: {secretName: {{ .Values.clientSecretName }}, optional: true, defaultMode: 256}
  {{- end }}
  - name: weir-no-token
    emptyDir: {sizeLimit: 1Mi}
{{- end }}

{{/* A quantity as a number. */}}
{{- define "weir.quantity" -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- mulf (float64 (regexFind "^[0-9.]+" .)) (get $units (regexFind "[A-Za-z]*$" .)) -}}
{{- end }}

{{/* A value as CEL: (list TYPE VALUE). Maps are objects of that type, but for those of quantities. */}}
{{- define "weir.cel" -}}
{{- $type := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
  {{- $plain := or (hasSuffix ".requests" $type) (hasSuffix ".limits" $type) -}}
  {{- if not $plain }}{{ $type }}{{ end }}{
  {{- $first := true -}}
  {{- range $key, $inner := $value -}}
    {{- if not $first }}, {{ end -}}
    {{- $first = false -}}
    {{- if $plain }}{{ toJson $key }}: {{ toString $inner | toJson }}
    {{- else }}{{ $key }}: {{ include "weir.cel" (list (printf "%s.%s" $type $key) $inner) }}
    {{- end -}}
  {{- end -}}
  }
{{- else if kindIs "slice" $value -}}
  [
  {{- range $index, $inner := $value -}}
    {{- if $index }}, {{ end -}}
    {{- include "weir.cel" (list $type $inner) -}}
  {{- end -}}
  ]
{{- else if kindIs "string" $value -}}
  {{- if hasPrefix "{pod}" $value -}}
    object.metadata.name{{ with trimPrefix "{pod}" $value }} + {{ toJson . }}{{ end }}
  {{- else -}}{{ toJson $value }}{{- end -}}
{{- else -}}{{ toJson $value }}{{- end -}}
{{- end }}
