# SPDX-License-Identifier: Apache-2.0
"""Export of samples: they are cut off every interval, made into lines, and handed to files or a Kafka topic.

The data path may never wait for it: a sink that is slow or full loses samples, and counts them.
"""
